"""The C library as Python sees it: where it lies, its dispatch level, its functions and argument structures.

Owns every ctypes declaration of the CPU kernels; the structures mirror those of the C sources field by
field. It knows no tensors (`arguments.py` does) and does not build the library (`build.py` does).
ctypes releases the interpreter lock during a call.
"""

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_void_p
from pathlib import Path

from mambad.kernels.cpu.build import LIBRARY_NAME, sources_digest

LEVEL_VARIABLE = "MAMBAD_CPU_LEVEL"
"""Environment variable that forces a dispatch level: avx512, avx2 or generic."""

DEFAULT_PATH = Path(__file__).parent / LIBRARY_NAME

_BUILD_COMMAND = "python -m mambad.kernels.cpu.build"


class LibraryError(Exception):
    """The C library can't be used here; the message says why in half a sentence."""


class ChunksArgument(ctypes.Structure):
    """`struct chunks` of chunks.h."""

    _fields_ = (
        ("num_chunks", c_size_t),
        ("starts", c_void_p),
        ("read_slots", c_void_p),
        ("write_slots", c_void_p),
        ("checkpoint_slots", c_void_p),
        ("has_initial_state", c_void_p),
    )


class SelectiveArgument(ctypes.Structure):
    """`struct selective` of selective.h."""

    _fields_ = (
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
        ("out", c_void_p),
        ("num_tokens", c_size_t),
        ("num_channels", c_size_t),
        ("state_size", c_size_t),
        ("num_slots", c_size_t),
    )


class SsdArgument(ctypes.Structure):
    """`struct ssd` of ssd.h."""

    _fields_ = (
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
        ("out", c_void_p),
        ("num_tokens", c_size_t),
        ("num_heads", c_size_t),
        ("head_size", c_size_t),
        ("num_groups", c_size_t),
        ("state_size", c_size_t),
        ("num_slots", c_size_t),
    )


class KvWriteArgument(ctypes.Structure):
    """`struct kv_write` of kv_write.c."""

    _fields_ = (
        ("k", c_void_p),
        ("k_stride", c_size_t),
        ("v", c_void_p),
        ("v_stride", c_size_t),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("positions", c_void_p),
        ("block_table", c_void_p),
        ("table_rows", c_void_p),
        ("num_tokens", c_size_t),
        ("row_floats", c_size_t),
        ("num_blocks", c_size_t),
        ("block_size", c_size_t),
        ("num_table_rows", c_size_t),
        ("num_table_columns", c_size_t),
    )


class AttentionArgument(ctypes.Structure):
    """`struct attention` of attention.h."""

    _fields_ = (
        ("q", c_void_p),
        ("q_stride", c_size_t),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("block_table", c_void_p),
        ("out", c_void_p),
        ("num_tokens", c_size_t),
        ("num_heads", c_size_t),
        ("head_size", c_size_t),
        ("num_blocks", c_size_t),
        ("block_size", c_size_t),
        ("num_kv_heads", c_size_t),
        ("num_table_rows", c_size_t),
        ("num_table_columns", c_size_t),
        ("scale", c_float),
    )


_CHUNKS = POINTER(ChunksArgument)
_SELECTIVE = POINTER(SelectiveArgument)
_SSD = POINTER(SsdArgument)
_ATTENTION = POINTER(AttentionArgument)

# Arguments after the pool, which is the first one of every op.
_OP_ARGUMENTS = {
    "linear": (c_void_p, c_void_p, c_size_t, c_size_t, c_void_p),
    "rms_norm": (c_void_p, c_size_t, c_void_p, c_float, c_void_p, c_size_t, c_size_t),
    "gated_rms_norm": (
        *(c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_float, c_void_p),
        *(c_size_t, c_size_t, c_size_t),
    ),
    "silu_mul": (c_void_p, c_size_t, c_void_p, c_size_t, c_size_t),
    "conv_prefill": (
        *(c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p),
        *(c_size_t, c_size_t, c_size_t, c_size_t, _CHUNKS),
    ),
    "conv_update": (
        *(c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p),
        *(c_size_t, c_size_t, c_size_t, c_size_t, c_void_p, c_void_p),
    ),
    "selective_scan": (_SELECTIVE, _CHUNKS),
    "selective_state_update": (_SELECTIVE, c_void_p, c_void_p),
    "ssd_scan": (_SSD, _CHUNKS),
    "ssd_state_update": (_SSD, c_void_p, c_void_p),
    "kv_write": (POINTER(KvWriteArgument),),
    "attention_prefill": (_ATTENTION, c_size_t, c_void_p, c_void_p, c_void_p),
    "attention_decode": (_ATTENTION, c_void_p, c_void_p),
}


class Library:
    """The loaded shared object at one dispatch level.

    Attributes:
        level: the dispatch level: avx512, avx2 or generic.
        pool_create: number of threads -> address of a pool, or None.
        pool_destroy: ends a pool's threads and frees it.
        pack_linear: (pool, weight, bias, num_out, num_in, is_bfloat16) -> address of a linear, or None.
        linear_bytes: bytes that a linear's weight and bias take.
        free_linear: frees a linear.
        ops: by op name, the function; the first argument is the pool, the result a status (kernel.h).

    Raises:
        LibraryError: the file is missing or unusable, or the level can't run here.
    """

    def __init__(self, path: Path = DEFAULT_PATH) -> None:
        if not path.exists():
            raise LibraryError(f"the C kernels are not built ({_BUILD_COMMAND} builds them)")
        try:
            loaded = ctypes.CDLL(str(path))
            _check_digest(loaded)
            self.level = _dispatch_level(loaded)
            self._declare(loaded)
        except (OSError, AttributeError) as error:
            raise LibraryError(f"the C kernels can't be loaded: {error}") from error

    def _declare(self, loaded: ctypes.CDLL) -> None:
        prefix = f"mambad_{self.level}_"
        self.pool_create = _declared(loaded, "mambad_pool_create", c_void_p, c_int)
        self.pool_destroy = _declared(loaded, "mambad_pool_destroy", None, c_void_p)
        self.pack_linear = _declared(
            loaded,
            prefix + "pack_linear",
            c_void_p,
            *(c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_int),
        )
        self.linear_bytes = _declared(loaded, prefix + "linear_bytes", c_size_t, c_void_p)
        self.free_linear = _declared(loaded, prefix + "free_linear", None, c_void_p)
        self.ops = {
            name: _declared(loaded, prefix + name, c_int, c_void_p, *arguments)
            for name, arguments in _OP_ARGUMENTS.items()
        }


def _declared(loaded: ctypes.CDLL, name: str, result: object, *arguments: object) -> Callable[..., int]:
    function = loaded[name]
    function.restype = result  # type: ignore[assignment]
    function.argtypes = arguments  # type: ignore[assignment]
    return function


def _check_digest(loaded: ctypes.CDLL) -> None:
    digest_of = loaded["mambad_sources_digest"]
    digest_of.restype = c_char_p
    if digest_of().decode() != sources_digest(Path(__file__).parent):
        raise LibraryError(f"the C kernels do not match their sources ({_BUILD_COMMAND} builds them anew)")


def _dispatch_level(loaded: ctypes.CDLL) -> str:
    wanted = os.environ.get(LEVEL_VARIABLE) or None
    level_of = loaded["mambad_dispatch_level"]
    level_of.restype = c_char_p
    level_of.argtypes = (c_char_p,)
    level = level_of(None if wanted is None else wanted.encode())
    if level is None:
        raise LibraryError(f"{LEVEL_VARIABLE}={wanted!r} is not a level that this machine and build have")
    return str(level.decode())
