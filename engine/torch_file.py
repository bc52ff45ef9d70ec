"""One PyTorch .bin file: a pickle of tensors, read without ever running code that it may hold.

Owns the translation of torch's refusals into one helpful line. It does not know which tensors a model needs.
"""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mambad.engine.errors import LoadError
from mambad.engine.tensor_header import TensorHeader

_ADVICE = "convert it to safetensors where you trust it"


class TorchFile:
    """A .bin file whose tensors stay on disk (mapped) until they are read.

    Files in the format before torch 1.6 can't be mapped and are read whole.

    Raises:
        LoadError: the file can't be read, is damaged, or holds anything but tensors by name.
    """

    def __init__(self, path: Path) -> None:
        self._tensors = _load(path)
        self.headers = {
            name: TensorHeader(
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                tensor.numel() * tensor.element_size(),
            )
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        """Return a tensor in the file's dtype; its memory may be the mapped file."""
        return self._tensors[name]


def _load(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            # About the pickle protocol; what can't be read raises all the same.
            warnings.simplefilter("ignore", UserWarning)
            content: Any = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except OSError as error:
        raise LoadError(f"{path} can't be read: {error.strerror}") from error
    # torch's parser raises whatever it stumbles over in a damaged file.
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError) as error:
        if "GLOBAL" in str(error):
            raise LoadError(f"{path} holds code, which mambad never runs; {_ADVICE}") from error
        raise LoadError(f"{path} is damaged, or holds something other than tensors; {_ADVICE}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path} holds a {type(content).__name__}, expected tensors by name")
    strangers = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if strangers:
        raise LoadError(f"{path}: {strangers[0]} is no tensor; only files with tensors by name can be loaded")
    return {str(name): tensor for name, tensor in content.items()}
