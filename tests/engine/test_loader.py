"""Loading and inspecting model folders: dtype policy, vocabulary, dummy weights, progress, report."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_driver import Driver, Span
from toy_models import copy_of, edit_json, toy_model

from mambad.engine.errors import ConfigError, LoadError
from mambad.engine.loader import choose_dtype, inspect_model, load_model
from mambad.engine.models.decoder import Decoder
from mambad.engine.models.rules import Rule
from mambad.engine.safetensors_file import SafetensorsFile
from mambad.engine.weights import to_canonical
from mambad.kernels.reference.ops import ReferenceOps

OPS = ReferenceOps("tests")


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def some_logits(decoder: Decoder) -> Tensor:
    return Driver(decoder).prefill(Span(1, torch.arange(5), 0, [5]))


@pytest.mark.parametrize(
    ("requested", "stored", "expected", "reason"),
    [
        ("auto", ["bfloat16"], torch.bfloat16, "auto: the checkpoint is bfloat16"),
        ("auto", ["float32"], torch.float32, "auto: the checkpoint is float32"),
        ("auto", ["bfloat16", "float32"], torch.float32, "auto: the checkpoint is bfloat16 and float32"),
        ("auto", ["float16"], torch.float32, "auto: the checkpoint is float16, and float16 has too little"),
        ("bfloat16", ["float32"], torch.bfloat16, "--dtype bfloat16"),
        ("float32", ["bfloat16"], torch.float32, "--dtype float32"),
    ],
)
def test_weight_dtype_follows_request_then_checkpoint(
    requested: str, stored: list[str], expected: torch.dtype, reason: str
) -> None:
    dtype, why = choose_dtype(requested, stored)
    assert dtype is expected
    assert why.startswith(reason)


@pytest.mark.parametrize(("requested", "message"), [("float16", "float16 can't be used"), ("int8", "'int8'")])
def test_weight_dtypes_without_a_cpu_path_are_refused(requested: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inspect_model(toy_model("mamba").folder, dtype=requested)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("role", ["decay", "channel_decay"])
def test_decay_is_computed_in_float32_from_any_stored_dtype(stored: torch.dtype, role: Any) -> None:
    shape = (50, 3) if role == "channel_decay" else (50,)
    logarithm = torch.linspace(-2, 12, 150)[: torch.Size(shape).numel()].reshape(shape).to(stored)
    decay = to_canonical(Rule("decay", ("A_log",), shape, role), logarithm, torch.bfloat16)
    expected = -logarithm.double().exp()
    if expected.dim() == 2:
        expected = expected.t()
    assert decay.dtype is torch.float32
    torch.testing.assert_close(decay.double(), expected, rtol=3e-7, atol=0)


def test_weights_have_the_weight_dtype_and_everything_else_float32() -> None:
    embedding = Rule("embedding", ("e",), (2, 2), "embedding")
    norm = Rule("norm", ("n",), (2,), "norm")
    assert to_canonical(embedding, torch.ones(2, 2), torch.bfloat16).dtype is torch.bfloat16
    assert to_canonical(norm, torch.ones(2, dtype=torch.bfloat16), torch.bfloat16).dtype is torch.float32


def test_report_describes_the_model_without_reading_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafetensorsFile, "read", None)
    report = inspect_model(toy_model("mamba2-bfloat16").folder)
    tensors = load_file(report.folder / "model.safetensors")
    wide = {name for name in tensors if name.endswith(("proj.weight", "embeddings.weight"))}
    sizes = [tensor.numel() * (2 if name in wide else 4) for name, tensor in tensors.items()]
    assert report.weight_dtype is torch.bfloat16
    assert report.num_parameters == sum(tensor.numel() for tensor in tensors.values())
    assert report.weight_bytes == sum(sizes)  # the tied head is the embedding
    assert report.checkpoint_dtypes == {"bfloat16": len(tensors)}
    assert report.file_names == ("model.safetensors",)


def test_progress_rises_to_its_total() -> None:
    folder = toy_model("granite").folder
    calls: list[tuple[int, int, str]] = []
    load_model(folder, ops=OPS, progress=lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    total = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert done == sorted(done)
    assert done[-1] == total
    assert {call[1] for call in calls} == {total}
    assert calls[0][2] == "embedding"


@pytest.mark.parametrize("name", ["mamba", "mamba-original", "mamba2-groups", "granite"])
def test_dummy_weights_need_a_config_only_and_follow_their_seed(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((toy_model(name).folder / "config.json").read_bytes())
    first, second, other = (
        some_logits(load_model(tmp_path, ops=OPS, load_format="dummy", seed=seed)) for seed in (3, 3, 4)
    )
    assert torch.isfinite(first).all()
    assert first.std() > 0.01
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    with pytest.raises(LoadError, match="holds no weights: expected"):
        inspect_model(tmp_path)


def test_dummy_weights_take_the_dtype_that_the_config_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((toy_model("mamba2-bfloat16").folder / "config.json").read_bytes())
    report = inspect_model(tmp_path, load_format="dummy")
    assert report.weight_dtype is torch.bfloat16
    assert "weights are random (--load-format dummy)" in report.notes
    edit_json(tmp_path / "config.json", dtype=None, torch_dtype="float32")
    assert inspect_model(tmp_path, load_format="dummy").weight_dtype is torch.float32


def write_tokenizer(folder: Path, num_tokens: int, added: dict[str, int]) -> None:
    vocab = {f"t{token_id}": token_id for token_id in range(num_tokens)}
    tokens = [{"content": content, "id": token_id} for content, token_id in added.items()]
    values = {"model": {"type": "BPE", "vocab": vocab}, "added_tokens": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(values))


def test_logits_exist_only_for_tokens_that_the_tokenizer_knows(tmp_path: Path) -> None:
    folder = copy_of("mamba", tmp_path / "model")
    write_tokenizer(folder, 90, {"<end>": 91})
    logits = some_logits(load_model(folder, ops=OPS))
    assert logits.shape == (5, 92)
    assert torch.equal(logits, some_logits(load_model(toy_model("mamba").folder, ops=OPS))[:, :92])
    assert inspect_model(folder).notes == ("5 of 97 embedding rows are padding and get no logits",)
    write_tokenizer(folder, 300, {})
    assert inspect_model(folder).spec.real_vocab_size == 97


def test_unigram_vocabularies_are_counted(tmp_path: Path) -> None:
    folder = copy_of("mamba", tmp_path / "model")
    vocab = [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    assert inspect_model(folder).spec.real_vocab_size == 3


def test_tokenizer_of_another_folder_counts_when_it_is_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 50, {})
    assert inspect_model(toy_model("mamba").folder, tokenizer_folder=tmp_path).spec.real_vocab_size == 50


@pytest.mark.parametrize(
    ("in_config", "in_generation_config", "expected"),
    [(3, [4, 3], (3, 4)), ([7, 2], None, (2, 7)), (None, 5, (5,)), (None, None, (91,)), (3, 500, (3,))],
)
def test_end_of_sequence_ids_are_collected(
    tmp_path: Path, in_config: Any, in_generation_config: Any, expected: tuple[int, ...]
) -> None:
    folder = copy_of("mamba", tmp_path / "model")
    edit_json(folder / "config.json", eos_token_id=in_config)
    edit_json(folder / "generation_config.json", eos_token_id=in_generation_config)
    write_tokenizer(folder, 90, {"<end>": 91})
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    assert inspect_model(folder).spec.eos_token_ids == expected


def test_a_model_without_end_of_sequence_says_so(tmp_path: Path) -> None:
    folder = copy_of("mamba", tmp_path / "model")
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", eos_token_id=None)
    report = inspect_model(folder)
    assert report.spec.eos_token_ids == ()
    assert "no end-of-sequence token is known: answers end at their length limit" in report.notes


def test_convolution_weights_without_the_middle_axis_are_accepted(tmp_path: Path) -> None:
    folder = copy_of("mamba", tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    squeezed = {name: t.squeeze(1).clone() if "conv1d.weight" in name else t for name, t in tensors.items()}
    save_file(squeezed, folder / "model.safetensors")
    expected = some_logits(load_model(toy_model("mamba").folder, ops=OPS))
    assert torch.equal(some_logits(load_model(folder, ops=OPS)), expected)
