"""What a checkpoint's header says about one tensor. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Dtype, shape and size of a tensor in a file.

    Attributes:
        dtype: torch's name of it, e.g. `bfloat16`.
        shape: as stored.
        num_bytes: as stored.
    """

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
