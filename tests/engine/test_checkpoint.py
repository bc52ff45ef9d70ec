"""Weight files: sharding, and one helpful line for whatever is missing, damaged or refused."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_models import copy_of, edit_json, toy_model

from mambad.engine.checkpoint import open_checkpoint
from mambad.engine.errors import LoadError
from mambad.engine.loader import inspect_model

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
BIN = "pytorch_model.bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Mamba-1 checkpoint that the test may change."""
    return copy_of("mamba", tmp_path / "model")


def shard(folder: Path, save: Any, file_names: list[str], index: str) -> None:
    """Spread the tensors over several files in turn."""
    tensors = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    weight_map = {name: file_names[place % len(file_names)] for place, name in enumerate(tensors)}
    for file_name in file_names:
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file_name}
        save(part, folder / file_name)
    (folder / index).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("save", "suffix", "index"),
    [(save_file, "safetensors", INDEX), (torch.save, "bin", "pytorch_model.bin.index.json")],
)
def test_shards_hold_the_same_tensors_as_one_file(folder: Path, save: Any, suffix: str, index: str) -> None:
    expected = load_file(folder / SINGLE)
    shard(folder, save, [f"part-1.{suffix}", f"part-2.{suffix}", f"part-3.{suffix}"], index)
    inspect_model(folder)
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.headers) == set(expected)
    assert len(checkpoint.file_names) == 3
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.read(name), tensor)
        assert checkpoint.headers[name].shape == tuple(tensor.shape)
        assert checkpoint.headers[name].num_bytes == tensor.nbytes


def test_bin_files_older_than_the_zip_format_are_read(folder: Path) -> None:
    tensors = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    torch.save(tensors, folder / BIN, _use_new_zipfile_serialization=False)
    inspect_model(folder)
    checkpoint = open_checkpoint(folder)
    assert all(torch.equal(checkpoint.read(name), tensor) for name, tensor in tensors.items())


def replace_tensors(folder: Path, **changes: Any) -> None:
    """Add, replace or (None) remove tensors; dots in names are written as two underscores."""
    tensors: dict[str, Any] = dict(load_file(folder / SINGLE))
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / SINGLE)


def break_index(folder: Path, **changes: str | None) -> None:
    shard(folder, save_file, ["one.safetensors", "two.safetensors"], INDEX)
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"] | changes
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def remove_shard(folder: Path) -> None:
    shard(folder, save_file, ["one.safetensors", "two.safetensors"], INDEX)
    (folder / "two.safetensors").unlink()


def cut_short(folder: Path) -> None:
    path = folder / SINGLE
    path.write_bytes(path.read_bytes()[:-10])


def write_header(folder: Path, header: bytes, *, length: int | None = None, data: bytes = b"") -> None:
    size = len(header) if length is None else length
    (folder / SINGLE).write_bytes(size.to_bytes(8, "little") + header + data)


def as_bin(folder: Path, content: Any) -> None:
    (folder / SINGLE).unlink()
    if isinstance(content, bytes):
        (folder / BIN).write_bytes(content)
    else:
        torch.save(content, folder / BIN)


ONES = torch.ones(3)
A_LOG = "backbone__layers__1__mixer__A_log"
HALF_TENSOR = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "holds no model: config.json is missing"),
        (lambda f: (f / "config.json").write_text("{"), "config.json can't be read as JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json holds no JSON object"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json does not describe a tokenizer"),
        (
            lambda f: edit_json(f / "config.json", eos_token_id="</s>"),
            "eos_token_id is '</s>', expected an id",
        ),
        (
            lambda f: (f / SINGLE).unlink(),
            "holds no weights: expected model.safetensors or pytorch_model.bin",
        ),
        (
            lambda f: replace_tensors(f, **{A_LOG: None}),
            "lacks 1 tensor that its configuration calls for: backbone.layers.1.mixer.A_log$",
        ),
        (
            lambda f: edit_json(f / "config.json", num_hidden_layers=4),
            r"lacks 10 tensors .*: backbone.layers.3.norm.weight, .* and 6 more$",
        ),
        (lambda f: replace_tensors(f, stray=ONES), "holds 1 tensor that this model has no place for: stray$"),
        (
            lambda f: replace_tensors(f, **{A_LOG: torch.ones(48, 7)}),
            r"A_log has shape \(48, 7\), expected \(48, 6\)",
        ),
        (
            lambda f: replace_tensors(f, lm_head__weight=torch.ones(90, 24)),
            r"lm_head.weight has shape \(90, 24\), expected \(97, 24\)",
        ),
        (
            lambda f: replace_tensors(f, **{A_LOG: torch.ones(48, 6, dtype=torch.int8)}),
            "A_log has dtype int8: only bfloat16, float16, float32, float64 can be loaded",
        ),
        (cut_short, "model.safetensors is cut short by 10 bytes at tensor .*; fetch the file again"),
        (lambda f: write_header(f, b"{}", length=10**9), "is damaged: its header does not fit into the file"),
        (lambda f: write_header(f, b"no json"), "is damaged or no safetensors file"),
        (lambda f: write_header(f, b"[]"), "is damaged: its header is no JSON object"),
        (lambda f: write_header(f, b'{"a":{}}'), "is damaged: the header of tensor a is malformed"),
        (
            lambda f: write_header(f, HALF_TENSOR, data=b"0000"),
            r"tensor a of shape \(2,\) and dtype float32 has 4",
        ),
        (lambda f: (f / SINGLE).write_bytes(b""), "model.safetensors is damaged"),
        (
            lambda f: (f / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\n"),
            "is a Git LFS pointer, not the weights; run `git lfs pull`",
        ),
        (remove_shard, "two.safetensors is missing, though model.safetensors.index.json names it"),
        (lambda f: break_index(f, ghost="one.safetensors"), "one.safetensors lacks tensor ghost"),
        (lambda f: break_index(f, ghost="../x.safetensors"), "names '../x.safetensors', which is no file of"),
        (lambda f: (f / INDEX).write_text("{}"), "index.json has no weight_map from tensors to files"),
        (lambda f: as_bin(f, b"PK\x03\x04 no zip"), "pytorch_model.bin is damaged, or holds something other"),
        (lambda f: as_bin(f, b"\x91" * 50), "pytorch_model.bin is damaged, or holds something other"),
        (lambda f: as_bin(f, b""), "pytorch_model.bin is damaged, or holds something other"),
        (lambda f: as_bin(f, [ONES]), "pytorch_model.bin holds a list, expected tensors by name"),
        (lambda f: as_bin(f, {"model": {"a": ONES}}), "model is no tensor; only files with tensors by name"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(
    folder: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(folder)
    with pytest.raises(LoadError, match=message) as caught:
        inspect_model(folder)
    assert "\n" not in str(caught.value)


class Payload:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("is_zip", [True, False])
def test_code_in_a_bin_file_is_refused_and_does_not_run(folder: Path, tmp_path: Path, is_zip: bool) -> None:
    (folder / SINGLE).unlink()
    content = {"a": ONES, "b": Payload(tmp_path / "ran")}
    torch.save(content, folder / BIN, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(LoadError, match="holds code, which mambad never runs; convert it to safetensors"):
        inspect_model(folder)
    assert not (tmp_path / "ran").exists()


def test_no_folder_at_all_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=re.escape(f"{tmp_path / 'none'} is not a folder")):
        inspect_model(tmp_path / "none")


def test_safetensors_are_preferred_to_bin_files(folder: Path) -> None:
    (folder / BIN).write_bytes(b"damaged")
    assert open_checkpoint(folder).file_names == (SINGLE,)
    assert toy_model("mamba").folder != folder
