"""The C library as Python sees it: where it lies, its dispatch level and its functions.

The structures that the ops take are in `calls.py`. It knows no tensors (`arguments.py` does) and does not
build the library (`build.py` does).
ctypes releases the interpreter lock during a call.
"""

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

from mambad.kernels.cpu.build import LIBRARY_NAME, sources_digest
from mambad.kernels.cpu.calls import CALLS

LEVEL_VARIABLE = "MAMBAD_CPU_LEVEL"
"""Environment variable that forces a dispatch level: one of `build.LEVELS`."""

LIBRARY_VARIABLE = "MAMBAD_CPU_LIBRARY"
"""Environment variable with the path of another build of the same sources, such as one with sanitizers."""

DEFAULT_PATH = Path(os.environ.get(LIBRARY_VARIABLE) or Path(__file__).parent / LIBRARY_NAME)

_BUILD_COMMAND = "python -m mambad.kernels.cpu.build"


class LibraryError(Exception):
    """The C library can't be used here; the message says why in half a sentence."""


class QuantizedSource(ctypes.Structure):
    """`struct quantized_source` of quantized_pack.c."""

    _fields_ = (
        ("integers", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("num_out", c_size_t),
        ("num_in", c_size_t),
        ("group_size", c_size_t),
        ("is_int4", c_size_t),
    )


class Library:
    """The loaded shared object at one dispatch level.

    Attributes:
        level: the dispatch level, one of `build.LEVELS`.
        note: why a better level that the machine promises is not used, or None.
        pool_create: number of threads -> address of a pool, or None.
        pool_destroy: ends a pool's threads and frees it.
        run_program: (pool, program, num_rows) -> status: see `program.py`.
        pack_linear: (pool, weight, bias, num_out, num_in, is_bfloat16) -> address of a linear, or None.
        linear_bytes: bytes that a linear's weight and bias take.
        free_linear: frees a linear.
        pack_quantized: (pool, quantized source) -> address of a quantized weight, or None.
        quantized_bytes, free_quantized: as for a linear.
        ops: by op name, the function: (pool, call structure) -> status (kernel.h).

    Raises:
        LibraryError: the file is missing or unusable, or the level can't run here.
    """

    def __init__(self, path: Path = DEFAULT_PATH) -> None:
        if not path.exists():
            raise LibraryError(f"the C kernels are not built ({_BUILD_COMMAND} builds them)")
        try:
            loaded = ctypes.CDLL(str(path))
            _check_digest(loaded)
            self.level, self.note = _dispatch_level(loaded)
            self._declare(loaded)
        except (OSError, AttributeError) as error:
            raise LibraryError(f"the C kernels can't be loaded: {error}") from error

    def _declare(self, loaded: ctypes.CDLL) -> None:
        prefix = f"mambad_{self.level}_"
        self.pool_create = _declared(loaded, "mambad_pool_create", c_void_p, c_int)
        self.pool_destroy = _declared(loaded, "mambad_pool_destroy", None, c_void_p)
        self.run_program = _declared(loaded, "mambad_run_program", c_int, c_void_p, c_void_p, c_size_t)
        self.pack_linear = _declared(
            loaded,
            prefix + "pack_linear",
            c_void_p,
            *(c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_int),
        )
        self.linear_bytes = _declared(loaded, prefix + "linear_bytes", c_size_t, c_void_p)
        self.free_linear = _declared(loaded, prefix + "free_linear", None, c_void_p)
        self.pack_quantized = _declared(
            loaded, prefix + "pack_quantized", c_void_p, c_void_p, POINTER(QuantizedSource)
        )
        self.quantized_bytes = _declared(loaded, prefix + "quantized_bytes", c_size_t, c_void_p)
        self.free_quantized = _declared(loaded, prefix + "free_quantized", None, c_void_p)
        self.ops = {
            name: _declared(loaded, prefix + name, c_int, c_void_p, POINTER(call))
            for name, call in CALLS.items()
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


def _dispatch_level(loaded: ctypes.CDLL) -> tuple[str, str | None]:
    """Return the level to use and the note on it; a level that multiplies wrongly here is passed over."""
    wanted = os.environ.get(LEVEL_VARIABLE) or None
    level_of, note_of = loaded["mambad_dispatch_level"], loaded["mambad_dispatch_note"]
    level_of.restype = note_of.restype = c_char_p
    level_of.argtypes = (c_char_p,)
    level = level_of(None if wanted is None else wanted.encode())
    note = note_of()
    note = None if note is None else str(note.decode())
    if level is None:
        because = "" if note is None else f": {note}"
        raise LibraryError(
            f"{LEVEL_VARIABLE}={wanted!r} is not a level that this machine and build have{because}"
        )
    return str(level.decode()), note
