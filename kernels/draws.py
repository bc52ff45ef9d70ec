"""What `Ops.draw` is asked for, row by row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class DrawParams:
    """Parameters of R draws, in host memory.

    Attributes:
        temperatures: (R,) float32 — divides the logits; 0 takes the first of the largest, without a draw.
        top_k: (R,) int64 — only the k most likely tokens; 0: all.
        top_p: (R,) float64 — only the fewest most likely tokens that have this share of what top_k leaves; 1:
            all.
        min_p: (R,) float32 — only tokens at least this likely, as a share of the likeliest; 0: all.
        uniforms: (R,) float64 — the draws, in [0, 1).
    """

    temperatures: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float32]
    uniforms: NDArray[np.float64]
