"""Call structures of the ops over cached keys and values; see `calls.py`."""

from ctypes import Structure, c_float, c_size_t, c_void_p


class KvWriteCall(Structure):
    """`struct kv_write_call` of kv_write.c."""

    _fields_ = (
        ("num_tokens", c_size_t),
        ("k", c_void_p),
        ("k_stride", c_size_t),
        ("v", c_void_p),
        ("v_stride", c_size_t),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("positions", c_void_p),
        ("block_table", c_void_p),
        ("table_rows", c_void_p),
        ("row_floats", c_size_t),
        ("num_blocks", c_size_t),
        ("block_size", c_size_t),
        ("num_table_rows", c_size_t),
        ("num_table_columns", c_size_t),
    )


class Attention(Structure):
    """`struct attention` of attention.h."""

    _fields_ = (
        ("num_tokens", c_size_t),
        ("q", c_void_p),
        ("q_stride", c_size_t),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("block_table", c_void_p),
        ("out", c_void_p),
        ("num_heads", c_size_t),
        ("head_size", c_size_t),
        ("num_blocks", c_size_t),
        ("block_size", c_size_t),
        ("num_kv_heads", c_size_t),
        ("num_table_rows", c_size_t),
        ("num_table_columns", c_size_t),
        ("scale", c_float),
    )


class AttentionPrefillCall(Structure):
    """`struct attention_prefill_call` of attention_prefill.c."""

    _fields_ = (
        ("attention", Attention),
        ("num_chunks", c_size_t),
        ("chunk_rows", c_void_p),
        ("chunk_positions", c_void_p),
        ("starts", c_void_p),
    )


class AttentionDecodeCall(Structure):
    """`struct attention_decode_call` of attention_decode.c."""

    _fields_ = (("attention", Attention), ("table_rows", c_void_p), ("positions", c_void_p))
