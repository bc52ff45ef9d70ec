"""The weight files of a model folder as one set of named tensors, read lazily.

Owns which files count, sharding by index, and the errors when a file is missing. It does not know which
tensors a model needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from mambad.engine.errors import LoadError
from mambad.engine.models.vocabulary import read_json
from mambad.engine.safetensors_file import SafetensorsFile
from mambad.engine.tensor_header import TensorHeader
from mambad.engine.torch_file import TorchFile

_CANDIDATES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "consolidated.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
_LFS_START = b"version https://git-lfs"


class WeightFile(Protocol):
    """One file of tensors."""

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        """What is in the file, by tensor name."""
        ...

    def read(self, name: str) -> Tensor:
        """Return a tensor in the file's dtype; its memory may be the mapped file."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a model folder.

    Attributes:
        file_names: the weight files, in order.
        headers: by tensor name.
    """

    file_names: tuple[str, ...]
    headers: Mapping[str, TensorHeader]
    _files: Mapping[str, WeightFile]

    def read(self, name: str) -> Tensor:
        """Return a tensor in the file's dtype; its memory may be the mapped file.

        Raises:
            LoadError: the file can't be read any more.
        """
        return self._files[name].read(name)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the weights of a model folder: safetensors before .bin, sharded before single.

    Raises:
        LoadError: there are no weights, or a file is missing or damaged.
    """
    for name in _CANDIDATES:
        if (folder / name).exists():
            return _open_sharded(folder, name) if name.endswith(".json") else _open_single(folder / name)
    raise LoadError(
        f"{folder} holds no weights: expected model.safetensors or pytorch_model.bin, or their index and "
        "shards (--load-format dummy tries a model without weights)"
    )


def _open_single(path: Path) -> Checkpoint:
    file = _open_file(path)
    return Checkpoint((path.name,), file.headers, dict.fromkeys(file.headers, file))


def _open_sharded(folder: Path, index_name: str) -> Checkpoint:
    weight_map = _read_weight_map(folder / index_name)
    names = tuple(dict.fromkeys(weight_map.values()))
    for name in names:
        # An index is data from elsewhere: it may not lead out of the folder.
        if Path(name).name != name:
            raise LoadError(f"{folder / index_name} names {name!r}, which is no file of this folder")
        if not (folder / name).exists():
            raise LoadError(f"{folder / name} is missing, though {index_name} names it; fetch it again")
    files = {name: _open_file(folder / name) for name in names}
    owners = {
        tensor_name: file
        for file_name, file in files.items()
        for tensor_name in file.headers
        if weight_map.get(tensor_name, file_name) == file_name
    }
    for tensor_name, file_name in weight_map.items():
        if tensor_name not in owners:
            raise LoadError(
                f"{folder / file_name} lacks tensor {tensor_name}, which {index_name} places there"
            )
    headers = {tensor_name: file.headers[tensor_name] for tensor_name, file in owners.items()}
    return Checkpoint(names, headers, owners)


def _read_weight_map(path: Path) -> dict[str, str]:
    weight_map = (read_json(path) or {}).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise LoadError(f"{path} has no weight_map from tensors to files")
    return weight_map


def _open_file(path: Path) -> WeightFile:
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_START)) == _LFS_START
    except OSError as error:
        raise LoadError(f"{path} can't be read: {error.strerror}") from error
    if is_pointer:
        raise LoadError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
    return SafetensorsFile(path) if path.suffix == ".safetensors" else TorchFile(path)
