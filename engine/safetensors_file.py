"""One .safetensors file: its header read and checked here, its tensors mapped by the safetensors library.

Owns the checks that turn a damaged or half-downloaded file into one helpful line. It does not know which
tensors a model needs.
"""

import json
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from mambad.engine.errors import LoadError
from mambad.engine.tensor_header import TensorHeader

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
}


class SafetensorsFile:
    """A file whose header is in memory and whose tensors are read one at a time.

    Raises:
        LoadError: the file can't be read or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.headers = read_headers(path)
        self._path = path
        self._file: Any = None

    def read(self, name: str) -> Tensor:
        """Return a tensor in the file's dtype; its memory may be the mapped file.

        Raises:
            LoadError: the data can't be read.
        """
        try:
            if self._file is None:
                self._file = safe_open(str(self._path), framework="pt", device="cpu")
            tensor: Tensor = self._file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{self._path} can't be read: {error}") from error
        return tensor


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """Return the headers of all tensors in a .safetensors file; reads no tensor.

    Raises:
        LoadError: the file can't be read, is no safetensors file, or is shorter than its header says.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            # Without this limit a damaged length would ask for any amount of memory.
            if header_bytes > min(file_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES):
                raise LoadError(f"{path} is damaged: its header does not fit into the file")
            header = json.loads(file.read(header_bytes))
    except OSError as error:
        raise LoadError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:  # not JSON, not UTF-8
        raise LoadError(f"{path} is damaged or no safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise LoadError(f"{path} is damaged: its header is no JSON object")
    header.pop("__metadata__", None)
    data_bytes = file_bytes - _LENGTH_BYTES - header_bytes
    return {name: _parse_header(path, name, entry, data_bytes) for name, entry in header.items()}


def _parse_header(path: Path, name: str, entry: Any, data_bytes: int) -> TensorHeader:
    try:
        code, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        start, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{path} is damaged: the header of tensor {name} is malformed") from error
    if end > data_bytes:
        raise LoadError(
            f"{path} is cut short by {end - data_bytes} bytes at tensor {name}; fetch the file again"
        )
    dtype, item_bytes = _DTYPES.get(code, (code, None))
    if start < 0 or (item_bytes is not None and end - start != math.prod(shape) * item_bytes):
        raise LoadError(
            f"{path} is damaged: tensor {name} of shape {shape} and dtype {dtype} has {end - start} bytes"
        )
    return TensorHeader(dtype, shape, end - start)
