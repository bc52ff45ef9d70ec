"""A sampler whose logits can be made NaN on demand: the fault `nan_logits`."""

from collections.abc import Sequence

from torch import Tensor

from mambad.engine.batch import SampleSpec
from mambad.engine.faults import FaultInjector
from mambad.engine.sampler import SampledRow, Sampler
from mambad.kernels.ops import Ops


class SpoilingSampler(Sampler):
    """Draws as `Sampler` does, from logits that the injector may have spoiled."""

    def __init__(self, eos_token_ids: Sequence[int], ops: Ops, faults: FaultInjector) -> None:
        super().__init__(eos_token_ids, ops)
        self._faults = faults

    def sample(self, logits: Tensor, specs: Sequence[SampleSpec]) -> list[SampledRow]:
        """Draw one token a row of logits (R, V) float32; a spoiled row is not finite."""
        self._faults.spoil_logits(logits)
        return super().sample(logits, specs)
