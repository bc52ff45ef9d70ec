"""A model's tensors under their canonical names, in canonical layout and dtype, made one at a time.

Owns what a rule's role means for a tensor (dtype, layout, random values) and the progress of a load. The
tensors come from a checkpoint or from a seeded generator; a layer takes each of its tensors once and
packs it, so that no second copy of the model is ever in memory.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from mambad.engine.checkpoint import Checkpoint
from mambad.engine.models.rules import Role, Rule
from mambad.engine.quantization import weight_format
from mambad.kernels.ops import Ops, PackedLinear
from mambad.kernels.quantization import WeightFormat

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and what was just loaded."""

WEIGHT_ROLES: frozenset[Role] = frozenset({"linear", "embedding"})
"""Roles that follow the weight dtype; everything else is float32."""


class TensorSource(Protocol):
    """Where tensors come from."""

    def read(self, rule: Rule) -> Tensor:
        """Return the rule's tensor in its shape in the checkpoint; its memory is not kept."""
        ...

    def num_bytes(self, rule: Rule) -> int:
        """Bytes of the rule's tensor, for progress."""
        ...


class CheckpointSource:
    """Tensors of a checkpoint, found by the names that the rules matched."""

    def __init__(self, checkpoint: Checkpoint, names: Mapping[str, str]) -> None:
        self._checkpoint = checkpoint
        self._names = names

    def read(self, rule: Rule) -> Tensor:
        """Return the tensor as stored."""
        return self._checkpoint.read(self._names[rule.target])

    def num_bytes(self, rule: Rule) -> int:
        """Bytes as stored."""
        return self._checkpoint.headers[self._names[rule.target]].num_bytes


class RandomSource:
    """Random tensors with scales that keep logits finite, a pure function of seed and target."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def read(self, rule: Rule) -> Tensor:
        """Return float32 values by the rule's role."""
        generator = torch.Generator()
        generator.manual_seed(zlib.crc32(f"{self._seed}/{rule.target}".encode()))
        values = torch.rand(rule.shape, generator=generator)
        match rule.role:
            case "linear" | "embedding" | "conv":
                # Uniform with the variance 1 / inputs.
                return (2 * values - 1) * math.sqrt(3 / rule.shape[-1])
            case "decay" | "channel_decay":
                return values * math.log(16)
            case "dt_bias":
                # The inverse of softplus at step sizes between 1e-3 and 1e-1, as models start out.
                return torch.log(torch.expm1(torch.exp(math.log(1e-3) + values * math.log(100))))
            case "norm" | "skip":
                return 0.8 + 0.4 * values
            case "bias" | "spare":
                return 0.2 * values - 0.1

    def num_bytes(self, rule: Rule) -> int:
        """Bytes in float32."""
        return 4 * math.prod(rule.shape)


class Weights:
    """What layers take their tensors from."""

    def __init__(
        self,
        rules: Iterable[Rule],
        source: TensorSource,
        dtype: torch.dtype,
        progress: Progress | None,
        quantization: str = "none",
    ) -> None:
        self._rules = {rule.target: rule for rule in rules if rule.role != "spare"}
        self._source = source
        self._dtype = dtype
        self._progress = progress
        self._quantization = quantization
        self._total_bytes = sum(source.num_bytes(rule) for rule in self._rules.values())
        self._done_bytes = 0

    def take(self, target: str) -> Tensor:
        """Return a tensor in canonical layout, contiguous, in memory of its own. Each can be taken once."""
        rule = self._rules.pop(target)
        tensor = to_canonical(rule, self._source.read(rule), self._dtype)
        self._done_bytes += self._source.num_bytes(rule)
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes, target)
        return tensor

    def take_optional(self, target: str) -> Tensor | None:
        """Return a tensor like `take`, or None when the model has none of that name."""
        return self.take(target) if target in self._rules else None

    def pack(self, target: str, ops: Ops) -> PackedLinear:
        """Take and pack a linear layer's weight and, if it has one, its bias."""
        weight, bias = self.take(f"{target}.weight"), self.take_optional(f"{target}.bias")
        return self.pack_tensors(target, weight, bias, ops)

    def pack_tensors(self, layer: str, weight: Tensor, bias: Tensor | None, ops: Ops) -> PackedLinear:
        """Pack tensors that were taken before, as `layer`, whose name decides about quantization."""
        return ops.pack_linear(weight, bias, self.format_of(layer))

    def format_of(self, layer: str) -> WeightFormat | None:
        """Return how a layer's weights are quantized; None: they are kept as they are."""
        return weight_format(self._quantization, layer)

    def left(self) -> tuple[str, ...]:
        """Return the targets that nobody has taken."""
        return tuple(self._rules)


def to_canonical(rule: Rule, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a checkpoint's tensor in the layout and dtype that the kernels want, as a copy.

    Weights get `dtype`, everything else float32. A is -exp(A_log), the exponential taken in float32 because
    a 16-bit one loses precision or overflows; Mamba-1's is transposed to (N, E).
    """
    target_dtype = dtype if rule.role in WEIGHT_ROLES else torch.float32
    # The copy also frees us from the mapped file and from its alignment.
    values = tensor.to(target_dtype, copy=True).reshape(rule.shape)
    if rule.role == "decay":
        return -values.exp()
    if rule.role == "channel_decay":
        return -values.exp().t().contiguous()
    return values.contiguous()
