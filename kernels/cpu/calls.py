"""The call structures of the C library, mirrored field by field from the C sources: one for each op.

Owns the list of ops, `CALLS`, and the structures of those that work row by row. The first field of every
structure is the number of rows or tokens, which is how a recorded call is repeated with another number of
them. It knows neither tensors nor the library.
"""

from ctypes import Structure, c_float, c_int, c_size_t, c_void_p

from mambad.kernels.cpu import attention_calls, state_calls


class EmbedPackedCall(Structure):
    """`struct embed_packed_call` of embed_packed.c."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("token_ids", c_void_p),
        ("linear", c_void_p),
        ("out", c_void_p),
        ("multiplier", c_float),
    )


class EmbedTableCall(Structure):
    """`struct embed_table_call` of embed_table.c."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("token_ids", c_void_p),
        ("table", c_void_p),
        ("out", c_void_p),
        ("num_tokens", c_size_t),
        ("width", c_size_t),
        ("multiplier", c_float),
        ("is_bfloat16", c_int),
    )


class LinearCall(Structure):
    """`struct linear_call` of linear.h."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("linear", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("out", c_void_p),
    )


class QuantizedLinearCall(Structure):
    """`struct quantized_linear_call` of quantized_linear.c."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("weight", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("out", c_void_p),
    )


class RmsNormCall(Structure):
    """`struct rms_norm_call` of rms_norm.c."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("width", c_size_t),
        ("epsilon", c_float),
    )


class AddRmsNormCall(Structure):
    """`struct add_rms_norm_call` of add_rms_norm.c."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("residual", c_void_p),
        ("update", c_void_p),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("width", c_size_t),
        ("multiplier", c_float),
        ("epsilon", c_float),
    )


class GatedRmsNormCall(Structure):
    """`struct gated_rms_norm_call` of gated_rms_norm.c."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("y", c_void_p),
        ("y_stride", c_size_t),
        ("z", c_void_p),
        ("z_stride", c_size_t),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("width", c_size_t),
        ("num_groups", c_size_t),
        ("epsilon", c_float),
    )


class SiluMulCall(Structure):
    """`struct silu_mul_call` of silu_mul.c."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("gate_up", c_void_p),
        ("stride", c_size_t),
        ("out", c_void_p),
        ("width", c_size_t),
    )


class DivideCall(Structure):
    """`struct divide_call` of divide.c."""

    _fields_ = (("num_rows", c_size_t), ("x", c_void_p), ("width", c_size_t), ("divisor", c_float))


class DrawCall(Structure):
    """`struct draw_call` of draw.c."""

    _fields_ = (
        ("num_rows", c_size_t),
        ("logits", c_void_p),
        ("num_tokens", c_size_t),
        ("temperatures", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("uniforms", c_void_p),
        ("token_ids", c_void_p),
    )


CALLS: dict[str, type[Structure]] = {
    "embed_packed": EmbedPackedCall,
    "embed_table": EmbedTableCall,
    "linear": LinearCall,
    "quantized_linear": QuantizedLinearCall,
    "rms_norm": RmsNormCall,
    "add_rms_norm": AddRmsNormCall,
    "gated_rms_norm": GatedRmsNormCall,
    "silu_mul": SiluMulCall,
    "divide": DivideCall,
    "draw": DrawCall,
    "conv_prefill": state_calls.ConvPrefillCall,
    "conv_update": state_calls.ConvUpdateCall,
    "selective_scan": state_calls.SelectiveScanCall,
    "selective_state_update": state_calls.SelectiveStateUpdateCall,
    "ssd_scan": state_calls.SsdScanCall,
    "ssd_state_update": state_calls.SsdStateUpdateCall,
    "kv_write": attention_calls.KvWriteCall,
    "attention_prefill": attention_calls.AttentionPrefillCall,
    "attention_decode": attention_calls.AttentionDecodeCall,
}
"""The structure of each op by its name, which is also its name in the library."""
