"""Call structures of the ops with a recurrent state: convolution, selective scan and SSD; see `calls.py`."""

from ctypes import Structure, c_float, c_size_t, c_void_p


class Chunks(Structure):
    """`struct chunks` of chunks.h."""

    _fields_ = (
        ("num_chunks", c_size_t),
        ("starts", c_void_p),
        ("read_slots", c_void_p),
        ("write_slots", c_void_p),
        ("checkpoint_slots", c_void_p),
        ("has_initial_state", c_void_p),
    )


class Rows(Structure):
    """`struct rows` of chunks.h."""

    _fields_ = (("read_slots", c_void_p), ("write_slots", c_void_p))


class Conv(Structure):
    """`struct conv` of conv.h."""

    _fields_ = (
        ("num_tokens", c_size_t),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("state", c_void_p),
        ("out", c_void_p),
        ("num_channels", c_size_t),
        ("kernel_width", c_size_t),
        ("num_slots", c_size_t),
    )


class ConvPrefillCall(Structure):
    """`struct conv_prefill_call` of conv_prefill.c."""

    _fields_ = (("conv", Conv), ("chunks", Chunks))


class ConvUpdateCall(Structure):
    """`struct conv_update_call` of conv_update.c."""

    _fields_ = (("conv", Conv), ("rows", Rows))


class Selective(Structure):
    """`struct selective` of selective.h."""

    _fields_ = (
        ("num_tokens", c_size_t),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("dt", c_void_p),
        ("dt_stride", c_size_t),
        ("A", c_void_p),
        ("B", c_void_p),
        ("B_stride", c_size_t),
        ("C", c_void_p),
        ("C_stride", c_size_t),
        ("D", c_void_p),
        ("z", c_void_p),
        ("z_stride", c_size_t),
        ("dt_bias", c_void_p),
        ("state", c_void_p),
        ("state_is_bfloat16", c_size_t),
        ("out", c_void_p),
        ("num_channels", c_size_t),
        ("state_size", c_size_t),
        ("num_slots", c_size_t),
    )


class SelectiveScanCall(Structure):
    """`struct selective_scan_call` of selective_scan.c."""

    _fields_ = (("selective", Selective), ("chunks", Chunks))


class SelectiveStateUpdateCall(Structure):
    """`struct selective_state_update_call` of selective_state_update.c."""

    _fields_ = (("selective", Selective), ("rows", Rows))


class Ssd(Structure):
    """`struct ssd` of ssd.h."""

    _fields_ = (
        ("num_tokens", c_size_t),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("dt", c_void_p),
        ("dt_stride", c_size_t),
        ("A", c_void_p),
        ("B", c_void_p),
        ("B_stride", c_size_t),
        ("C", c_void_p),
        ("C_stride", c_size_t),
        ("D", c_void_p),
        ("dt_bias", c_void_p),
        ("dt_low", c_float),
        ("dt_high", c_float),
        ("state", c_void_p),
        ("state_is_bfloat16", c_size_t),
        ("out", c_void_p),
        ("num_heads", c_size_t),
        ("head_size", c_size_t),
        ("num_groups", c_size_t),
        ("state_size", c_size_t),
        ("num_slots", c_size_t),
    )


class SsdScanCall(Structure):
    """`struct ssd_scan_call` of ssd_scan.c."""

    _fields_ = (("ssd", Ssd), ("chunks", Chunks))


class SsdStateUpdateCall(Structure):
    """`struct ssd_state_update_call` of ssd_state_update.c."""

    _fields_ = (("ssd", Ssd), ("rows", Rows))
