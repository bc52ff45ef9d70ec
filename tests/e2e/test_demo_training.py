"""The scripts that train the demo model: parsing, the byte model, the scan, and a run that repeats itself."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from mambad.configs.demo_training.byte_model import WittenBell
from mambad.configs.demo_training.corpus import (
    TEST_PLAYS,
    VALIDATION_PLAYS,
    conversations,
    load_corpus,
    parse_play,
    plain_text,
    scenes,
)
from mambad.configs.demo_training.model import ModelConfig, ssd
from mambad.configs.demo_training.train import Run, Settings

PLAY = """\
# The Test

## ACT I

### SCENE I. A *bare* room.

_Enter ANNE,
and BOB_

**ANNE**~
Who's  there?~
_\\[Aside]_~
'Tis cold,'\\--or so.

**BOB**~
Nay, answer me.

_Knocking_

Again!

**ANNE**~
Long live — the king!

**CLOWN**~
Ho!

### SCENE II. The same.

**BOB**~
1\\. Farewell.
""".replace("~", "  ")  # A line break in Markdown.


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def test_a_play_loses_its_markdown_and_keeps_its_words() -> None:
    assert plain_text(parse_play("test", PLAY)) == (
        "The Test\n\nACT I\n\nSCENE I. A bare room.\n\n[Enter ANNE, and BOB]\n\n"
        "ANNE:\nWho's there?\n[Aside]\n'Tis cold,'--or so.\n\n"
        "BOB:\nNay, answer me.\n\n[Knocking]\n\nAgain!\n\n"
        "ANNE:\nLong live -- the king!\n\nCLOWN:\nHo!\n\nSCENE II. The same.\n\nBOB:\n1. Farewell.\n"
    )


def test_turns_alternate_between_two_characters_and_end_with_the_assistant() -> None:
    (heading, speeches), (_, last_scene) = scenes(parse_play("test", PLAY))
    assert list(conversations(heading, speeches)) == [
        "SCENE I. A bare room.\n<|user|>Who's there?\n[Aside]\n'Tis cold,'--or so.<|end|>"
        "<|assistant|>Nay, answer me.\nAgain!<|end|>",
        "SCENE I. A bare room.\n<|user|>Long live -- the king!<|end|><|assistant|>Ho!<|end|>",
    ]
    assert list(conversations("", last_scene)) == []


def _witten_bell(texts: list[bytes], context: bytes, byte: int) -> float:
    """P(byte | context) by the definition, one count at a time."""
    if not context:
        followers = Counter(b for text in texts for b in text)
        lower = 1 / 256
    else:
        padded = [b"\n\n\n" + text for text in texts]
        followers = Counter(
            text[at]
            for text in padded
            for at in range(3, len(text))
            if text[at - len(context) : at] == context
        )
        lower = _witten_bell(texts, context[1:], byte)
    kinds, total = len(followers), followers.total()
    return (followers[byte] + kinds * lower) / (total + kinds) if total else lower


def test_the_byte_model_follows_its_definition() -> None:
    texts = [b"abracadabra, abracadabra\n", b"a bread board"]
    probe = b"abra brrz\xff"
    padded = b"\n\n\n" + probe
    wanted = -sum(
        math.log2(_witten_bell(texts, padded[at : at + 3], padded[at + 3])) for at in range(len(probe))
    )
    assert WittenBell(texts).bits(probe) == pytest.approx(wanted, rel=1e-12)


def test_the_byte_model_is_a_distribution() -> None:
    model = WittenBell([b"abracadabra"])
    prefix = b"abra"
    total = sum(2 ** -(model.bits(prefix + bytes([b])) - model.bits(prefix)) for b in range(256))
    assert total == pytest.approx(1, rel=1e-9)


def test_the_chunked_scan_equals_the_recurrence() -> None:
    torch.manual_seed(0)
    batch, length, heads, dim, states = 2, 24, 3, 4, 5
    x, b, c = (torch.randn(batch, length, *s).double() for s in ((heads, dim), (states,), (states,)))
    dt = torch.rand(batch, length, heads).double()
    a = -torch.rand(heads).double() * 4
    state = torch.zeros(batch, heads, dim, states).double()
    wanted = []
    for t in range(length):
        step = dt[:, t, :, None, None]
        state = (step * a[:, None, None]).exp() * state + step * torch.einsum(
            "bhp,bn->bhpn", x[:, t], b[:, t]
        )
        wanted.append(torch.einsum("bhpn,bn->bhp", state, c[:, t]))
    torch.testing.assert_close(ssd(x, dt, a, b, c, chunk=8).double(), torch.stack(wanted, 1))


def _short_run(corpus: Path, out: Path, seed: int) -> list[dict[str, float]]:
    out.mkdir()
    config = ModelConfig(
        vocab_size=300, hidden_size=32, layer_types=("mamba", "attention"), shared_intermediate_size=32,
        mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, num_attention_heads=2,
    )  # fmt: skip
    run = Run(load_corpus(corpus), out, Settings(seed=seed, steps=3, rows=1, length=64), config)
    run.train()
    run.finish()
    losses: list[dict[str, float]] = json.loads((out / "training.json").read_text())["losses"]
    return losses


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "plays"
    folder.mkdir()
    words = np.random.default_rng(0).choice(["so", "fare", "thee", "well", "king"], 400)
    for name in (*VALIDATION_PLAYS, *TEST_PLAYS, "other"):
        (folder / f"{name}.md").write_text(f"# {name}\n\n**ANNE**  \n{' '.join(words)}\n\n**BOB**  \nAy.\n")
    return folder


def test_the_same_seed_gives_the_same_losses_and_files(corpus: Path, tmp_path: Path) -> None:
    first = _short_run(corpus, tmp_path / "first", seed=1)
    again = _short_run(corpus, tmp_path / "again", seed=1)
    other = _short_run(corpus, tmp_path / "other", seed=2)
    assert first == again
    assert first != other
    for name in ("model.safetensors", "tokenizer.json", "training.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_folder_without_the_held_out_plays_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="two-gentlemen-of-verona"):
        load_corpus(tmp_path)
