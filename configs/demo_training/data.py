"""Token streams for training and windows for scoring.

Owns the order in which text reaches the model: a pure function of the plays, the tokenizer and the seed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from mambad.configs.demo_training.corpus import END_OF_TEXT, Play, conversations, plain_text, scenes
from mambad.configs.demo_training.model import DemoModel

# Every play is read as plain text once an epoch; of its scenes, one in three is read as turns besides.
TURNS_EVERY = 3

Ids = NDArray[np.int64]


def encode(tokenizer: Tokenizer, text: str) -> Ids:
    """Token ids of one document with the end-of-text token before it."""
    return np.array(tokenizer.encode(END_OF_TEXT + text).ids, dtype=np.int64)


class TrainingStream:
    """Endless batches of token windows, epoch after epoch."""

    def __init__(self, plays: Sequence[Play], tokenizer: Tokenizer, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._plain = [encode(tokenizer, plain_text(play)) for play in plays]
        self._turns = [
            np.concatenate([encode(tokenizer, text) for text in conversations(heading, speeches)])
            for play in plays
            for heading, speeches in scenes(play)
            if len(speeches) > 1
        ]
        self.plain_tokens = sum(len(ids) for ids in self._plain)
        self.turn_tokens = sum(len(ids) for ids in self._turns)

    def batches(self, rows: int, length: int) -> Iterator[Tensor]:
        """Yield (rows, length + 1) int64: inputs and, one to the right, targets."""
        pending: list[Ids] = []
        epoch = 0
        while True:
            while len(pending) < rows:
                pending.extend(self._epoch(epoch, length))
                epoch += 1
            yield torch.from_numpy(np.stack(pending[:rows]))
            del pending[:rows]

    def _epoch(self, epoch: int, length: int) -> list[Ids]:
        """Documents in a random order, joined, cut at a random phase into windows, and shuffled."""
        documents = self._plain + self._turns[epoch % TURNS_EVERY :: TURNS_EVERY]
        order = self._random.permutation(len(documents))
        stream = np.concatenate([documents[index] for index in order])
        phase = int(self._random.integers(length))
        starts = np.arange(phase, len(stream) - length, length)
        self._random.shuffle(starts)
        return [stream[start : start + length + 1] for start in starts]


@dataclass(frozen=True, slots=True)
class Score:
    """Loss on held-out text."""

    nats_per_token: float
    bits_per_byte: float
    bytes_per_token: float


def score(model: DemoModel, tokenizer: Tokenizer, texts: Sequence[str], length: int) -> Score:
    """Loss of ``model`` in float32 on whole texts, cut into windows of ``length`` tokens.

    Each window starts from the zero state and sees nothing of the one before: a strict bound, since a
    served request has more context. Every token but the leading end-of-text is predicted exactly once.
    """
    model.eval()
    nats, tokens = 0.0, 0
    with torch.inference_mode():
        for text in texts:
            ids = torch.from_numpy(encode(tokenizer, text))
            count = len(ids) - 1
            padded = F.pad(ids, (0, -count % length))
            inputs = padded[: math.ceil(count / length) * length].view(-1, length)
            targets = torch.full_like(inputs, -100).view(-1)
            targets[:count] = ids[1:]
            for rows, wanted in zip(
                torch.split(inputs, 4), torch.split(targets.view_as(inputs), 4), strict=True
            ):
                logits = model(rows).float().flatten(0, 1)
                nats += float(F.cross_entropy(logits, wanted.flatten(), reduction="sum"))
            tokens += count
    model.train()
    size = sum(len(text.encode()) for text in texts)
    return Score(nats / tokens, nats / math.log(2) / size, size / tokens)
