"""Which linear layers become which integers under `--quantization`.

Owns that choice and nothing else: how weights are rounded is `mambad.kernels.quantization`'s. The decision
and the figures behind it are in docs/decisions/0008-quantization.md.
"""

from mambad.kernels.quantization import INT4, INT8, WeightFormat

QUANTIZATIONS = ("none", "int8", "int4")
"""Values of --quantization."""

HEAD = "head"
"""The projection to the vocabulary: 4 bits in it cost as much quality as in all layers together."""

FINER = (HEAD, ".x_proj", ".dt_proj")
"""Ends of the layers that get 8 bits where the others get 4: the head, and the small matrices that make
Mamba-1's step sizes, which go through an exponential in every channel."""


def weight_format(quantization: str, layer: str) -> WeightFormat | None:
    """Return the integers of a linear layer, or None if it stays as it is.

    Args:
        quantization: none, int8 or int4.
        layer: name of the layer, without `.weight`.
    """
    if quantization == "none":
        return None
    return INT8 if quantization == "int8" or layer.endswith(FINER) else INT4


def plan_lines(quantization: str) -> tuple[str, ...]:
    """Return what the plan says about it: nothing for none."""
    head = f", the head int8 in groups of {INT8.group_size}"
    if quantization == "none":
        return ()
    form, head = (INT8, "") if quantization == "int8" else (INT4, head)
    return (
        f"integers  linear weights int{form.num_bits} in groups of {form.group_size}{head} (--quantization)",
    )
