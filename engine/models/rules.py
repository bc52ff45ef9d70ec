"""Which tensor of a checkpoint goes where: rules, the sets that families share, and the match.

A family lists one `Rule` for every tensor of its model. The loader demands that every rule finds its
tensor, in the right shape, and that no tensor is left over; what a tensor is for (its role) decides its
dtype, its canonical layout and, for a dummy model, its random values (`mambad.engine.weights`). No torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mambad.engine.errors import LoadError
from mambad.engine.models.spec import AttentionSpec, Mamba1Spec, Mamba2Spec, MixerSpec

Role: TypeAlias = Literal[
    "linear", "embedding", "bias", "norm", "conv", "decay", "channel_decay", "skip", "dt_bias", "spare"
]
"""What a tensor is for. `decay` is A_log of shape (H,), `channel_decay` A_log of shape (E, N), `skip` D; a
`spare` tensor may be there, must then have the rule's shape, and is not loaded."""

NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """One tensor of the model.

    Attributes:
        target: name under which layers ask for it.
        sources: names that a checkpoint may give it; the first that is there counts.
        shape: shape in the checkpoint; for a convolution (channels, width).
        role: what it is for.
    """

    target: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    role: Role

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape fits: a convolution may have an axis of length 1 in the middle."""
        found = tuple(shape)
        is_spread = self.role == "conv" and found == (self.shape[0], 1, self.shape[1])
        return found == self.shape or is_spread


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of the model: prefix of its targets, and prefixes that checkpoints use for its sources."""

    target: str
    sources: tuple[str, ...]

    def inner(self, target: str, source: str) -> "Scope":
        """Return the scope of a part of this part."""
        return Scope(f"{self.target}{target}.", tuple(f"{prefix}{source}." for prefix in self.sources))

    def rule(self, target: str, source: str, shape: tuple[int, ...], role: Role) -> Rule:
        """Return the rule for one tensor of this part."""
        return Rule(self.target + target, tuple(prefix + source for prefix in self.sources), shape, role)

    def linear(
        self, target: str, source: str, shape: tuple[int, int], *, has_bias: bool = False
    ) -> list[Rule]:
        """Return the rules of a linear layer with weight of `shape` (outputs, inputs)."""
        rules = [self.rule(f"{target}.weight", f"{source}.weight", shape, "linear")]
        if has_bias:
            rules.append(self.rule(f"{target}.bias", f"{source}.bias", shape[:1], "bias"))
        return rules


def mixer_rules(scope: Scope, hidden_size: int, mixer: MixerSpec) -> list[Rule]:
    """Return the rules of a mixer under the names that all families use within it."""
    match mixer:
        case Mamba1Spec():
            return _mamba1_rules(scope, hidden_size, mixer)
        case Mamba2Spec():
            return _mamba2_rules(scope, hidden_size, mixer)
        case AttentionSpec():
            return _attention_rules(scope, hidden_size, mixer)


def norm_rule(scope: Scope, target: str, source: str, size: int) -> Rule:
    """Return the rule of a norm's weight."""
    return scope.rule(target, f"{source}.weight", (size,), "norm")


def _conv_rules(scope: Scope, num_channels: int, width: int, has_bias: bool) -> list[Rule]:
    rules = [scope.rule("conv.weight", "conv1d.weight", (num_channels, width), "conv")]
    if has_bias:
        rules.append(scope.rule("conv.bias", "conv1d.bias", (num_channels,), "bias"))
    return rules


def _mamba1_rules(scope: Scope, hidden_size: int, mixer: Mamba1Spec) -> list[Rule]:
    inner, state, rank = mixer.inner_size, mixer.state_size, mixer.dt_rank
    has_bias = mixer.has_proj_bias
    return [
        *scope.linear("in_proj", "in_proj", (2 * inner, hidden_size), has_bias=has_bias),
        *_conv_rules(scope, inner, mixer.conv_width, mixer.has_conv_bias),
        *scope.linear("x_proj", "x_proj", (rank + 2 * state, inner)),
        *scope.linear("dt_proj", "dt_proj", (inner, rank)),
        scope.rule("dt_bias", "dt_proj.bias", (inner,), "dt_bias"),
        scope.rule("decay", "A_log", (inner, state), "channel_decay"),
        scope.rule("skip", "D", (inner,), "skip"),
        *scope.linear("out_proj", "out_proj", (hidden_size, inner), has_bias=has_bias),
    ]


def _mamba2_rules(scope: Scope, hidden_size: int, mixer: Mamba2Spec) -> list[Rule]:
    inner, num_heads = mixer.inner_size, mixer.num_heads
    has_bias = mixer.has_proj_bias
    return [
        *scope.linear("in_proj", "in_proj", (mixer.proj_size, hidden_size), has_bias=has_bias),
        *_conv_rules(scope, mixer.conv_size, mixer.conv_width, mixer.has_conv_bias),
        scope.rule("dt_bias", "dt_bias", (num_heads,), "dt_bias"),
        scope.rule("decay", "A_log", (num_heads,), "decay"),
        scope.rule("skip", "D", (num_heads,), "skip"),
        norm_rule(scope, "norm", "norm", inner),
        *scope.linear("out_proj", "out_proj", (hidden_size, inner), has_bias=has_bias),
    ]


def _attention_rules(scope: Scope, hidden_size: int, mixer: AttentionSpec) -> list[Rule]:
    query_size, kv_size = mixer.num_heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    has_bias = mixer.has_bias
    return [
        *scope.linear("q_proj", "q_proj", (query_size, hidden_size), has_bias=has_bias),
        *scope.linear("k_proj", "k_proj", (kv_size, hidden_size), has_bias=has_bias),
        *scope.linear("v_proj", "v_proj", (kv_size, hidden_size), has_bias=has_bias),
        *scope.linear("o_proj", "o_proj", (hidden_size, query_size), has_bias=has_bias),
    ]


def match_rules(rules: Iterable[Rule], shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return the tensor name for each rule's target, spare ones left out.

    Args:
        rules: what the model is made of.
        shapes: shape of every tensor in the checkpoint, by name.

    Raises:
        LoadError: a tensor is missing, has no place, or has another shape than its rule says.
    """
    matched: dict[str, str] = {}
    missing: list[str] = []
    places: set[str] = set()
    for rule in rules:
        name = next((source for source in rule.sources if source in shapes), None)
        if name is None:
            if rule.role != "spare":
                missing.append(rule.sources[0])
            continue
        if not rule.accepts(shapes[name]):
            raise LoadError(
                f"tensor {name} has shape {tuple(shapes[name])}, expected {rule.shape}: "
                "config.json and the weights do not belong together"
            )
        places.add(name)
        if rule.role != "spare":
            matched[rule.target] = name
    unexpected = [name for name in shapes if name not in places]
    if missing or unexpected:
        raise LoadError(_describe_mismatch(missing, unexpected))
    return matched


def _describe_mismatch(missing: list[str], unexpected: list[str]) -> str:
    parts = []
    if missing:
        parts.append(f"lacks {_count(missing)} that its configuration calls for: {_some(missing)}")
    if unexpected:
        parts.append(f"holds {_count(unexpected)} that this model has no place for: {_some(unexpected)}")
    return "the checkpoint " + "; it ".join(parts)


def _count(names: list[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
