"""The bundled demo model: its files agree with each other, Transformers loads them unchanged, and the
daemon's own decoder gives the same logits.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from toy_driver import Driver, whole

from mambad.engine.loader import load_model
from mambad.kernels.cpu.ops import load_cpu_ops
from mambad.kernels.ops import Ops
from mambad.kernels.reference.ops import ReferenceOps

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "demo"
SPECIAL_TOKENS = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]
MAX_FILE_BYTES = 6_000_000
TOLERANCE = 2e-5
"""Largest difference of a logit, relative to the largest logit."""

SPEECH = """\
<|endoftext|>ACT V

SCENE III. Another part of the field.

[Enter the KING, with his train]

KING:
Now sits the wind within the shoulder of our sail,
And he that hath no stomach to this fight
Let him depart; his passport shall be made.
"""


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def their_tokenizer() -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(FOLDER)
    return loaded


@pytest.fixture(scope="module")
def token_ids(tokenizer: Tokenizer) -> Tensor:
    ids = torch.tensor(tokenizer.encode(SPEECH).ids)
    # More than one chunk, and a chunk that is not full.
    assert 64 < len(ids) < 128
    return ids


@pytest.fixture(scope="module")
def their_logits(token_ids: Tensor) -> Tensor:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    assert type(model).__name__ == "GraniteMoeHybridForCausalLM"
    with torch.no_grad():
        logits: Tensor = model(token_ids[None], use_cache=False).logits[0]
    return logits


@functools.cache
def ops_named(name: str) -> Ops | str:
    return ReferenceOps("tests") if name == "reference" else load_cpu_ops(1)


@pytest.fixture(params=["reference", "cpu"], scope="module")
def driver(request: pytest.FixtureRequest) -> Driver:
    ops = ops_named(request.param)
    if isinstance(ops, str):
        pytest.skip(ops)
    return Driver(load_model(FOLDER, ops=ops, dtype="float32"))


@functools.cache
def record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "training.json").read_text())
    return content


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    difference = (ours - theirs).abs().max() / theirs.abs().max()
    assert difference <= TOLERANCE, f"off by {difference:.1e}"


def test_a_prefilled_prompt_has_the_logits_of_transformers(
    driver: Driver, token_ids: Tensor, their_logits: Tensor
) -> None:
    assert_close(driver.run_in_pieces(token_ids, [whole(len(token_ids))]), their_logits)


def test_a_prompt_read_token_by_token_has_the_logits_of_transformers(
    driver: Driver, token_ids: Tensor, their_logits: Tensor
) -> None:
    assert_close(driver.run_token_by_token(token_ids), their_logits)


def test_the_model_predicts_english_far_better_than_chance(token_ids: Tensor, their_logits: Tensor) -> None:
    loss = torch.nn.functional.cross_entropy(their_logits[:-1], token_ids[1:])
    assert loss < 4.5, "uniform over 2048 tokens would be 7.6"


@pytest.mark.parametrize(
    "text",
    [
        "To be, or not to be",
        "naïve café — “quoted”",
        "日本語 и русский",
        "👩‍👩‍👧 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
        " \t\r\n\n  x  ",
        "\x00\x7f\u2028",
        "",
    ],
)
def test_the_tokenizer_gives_back_every_text(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_both_readers_of_the_tokenizer_agree(
    tokenizer: Tokenizer, their_tokenizer: PreTrainedTokenizerBase
) -> None:
    assert their_tokenizer(SPEECH)["input_ids"] == tokenizer.encode(SPEECH).ids


def test_each_special_token_is_one_id(tokenizer: Tokenizer, their_tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.encode("".join(SPECIAL_TOKENS)).ids == [0, 1, 2, 3]
    assert their_tokenizer("".join(SPECIAL_TOKENS))["input_ids"] == [0, 1, 2, 3]
    assert sorted(their_tokenizer.all_special_ids) == [0, 1, 2, 3]
    assert tokenizer.decode([1, 2, 3, 0]) == ""


def test_the_chat_template_renders_the_turns_of_the_training_text(
    their_tokenizer: PreTrainedTokenizerBase,
) -> None:
    messages = [
        {"role": "system", "content": "SCENE I. A room."},
        {"role": "user", "content": "Who's there?"},
        {"role": "assistant", "content": "Nay, answer me."},
        {"role": "user", "content": "Long live the king!"},
    ]
    prompt = their_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == (
        "SCENE I. A room.\n<|user|>Who's there?<|end|><|assistant|>Nay, answer me.<|end|>"
        "<|user|>Long live the king!<|end|><|assistant|>"
    )


def test_the_chat_template_refuses_roles_that_it_does_not_know(
    their_tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(Exception, match="not tool"):
        their_tokenizer.apply_chat_template([{"role": "tool", "content": "1"}], tokenize=False)


def test_generation_stops_at_the_end_of_a_text_and_of_a_turn() -> None:
    generation = json.loads((FOLDER / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [0, 3]


def test_the_record_describes_these_files() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert {key: config[key] for key in record()["model"]} == record()["model"]
    assert config["dtype"] == record()["final"]["dtype"]
    for name, digest in record()["sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_the_model_has_the_promised_size() -> None:
    assert 2_000_000 <= record()["parameters"] <= 3_000_000
    size = (FOLDER / "model.safetensors").stat().st_size
    assert 2 * record()["parameters"] < size <= MAX_FILE_BYTES


def test_the_recorded_losses_fall_and_end_at_the_last_step() -> None:
    losses = record()["losses"]
    steps = [entry["step"] for entry in losses]
    held_out = [entry["validation_bits_per_byte"] for entry in losses]
    assert steps[:3] == [100, 200, 500]
    assert steps[-1] == record()["settings"]["steps"]
    assert held_out == sorted(held_out, reverse=True)


def test_the_model_beats_the_byte_model_on_held_out_plays() -> None:
    final, yardstick = record()["final"], record()["byte_model"]
    assert final["test_bits_per_byte"] < yardstick["test_bits_per_byte"]
    last = record()["losses"][-1]
    assert last["validation_bits_per_byte"] < yardstick["validation_bits_per_byte"]


def test_the_card_gives_the_recorded_figures() -> None:
    card = (FOLDER / "README.md").read_text()
    final, yardstick = record()["final"], record()["byte_model"]
    for figure in (final["test_bits_per_byte"], yardstick["test_bits_per_byte"]):
        assert f"{figure:.2f}" in card
    assert f"{record()['parameters']:,}" in card
