"""The recurrent states of all slots, as tensors.

Owns their memory and the copies between slots and to and from the host. Which slot belongs to whom, and
when it may be touched, is decided elsewhere (`mambad.engine.id_pool`, `mambad.engine.cache_manager`).
Slot 0 is the null slot. Memory is not initialised: a request's first chunk starts from zero without
reading, and nothing real ever reads slot 0.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from mambad.engine.models.spec import ModelSpec, StateSpec
from mambad.engine.pool_memory import empty_pool


class StatePool:
    """States of `num_slots` slots and the null slot in all layers, S = num_slots + 1.

    Layers that keep the same kind of state share one tensor (L, S, *shape) of its dtype. A slot's copies and
    checksums cover all layers. No method may touch a slot that a launched step still uses.

    Args:
        spec: the model; its layers say what is kept.
        num_slots: slots, the null slot not counted; at least 1.
        device: where the states live.
    """

    def __init__(self, spec: ModelSpec, num_slots: int, device: torch.device) -> None:
        self.num_slots = num_slots
        layers_of: dict[StateSpec, list[int]] = {}
        for index, layer in enumerate(spec.layers):
            for state in layer.mixer.state_specs():
                layers_of.setdefault(state, []).append(index)
        self._tensors: list[Tensor] = []
        self._layers: dict[tuple[int, str], Tensor] = {}
        for state, indices in layers_of.items():
            shape = (len(indices), num_slots + 1, *state.shape)
            tensor = empty_pool(shape, getattr(torch, state.dtype), device)
            self._tensors.append(tensor)
            for place, index in enumerate(indices):
                self._layers[index, state.name] = tensor[place]

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots, the null slot included."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def layer(self, layer_index: int, name: str) -> Tensor:
        """Return the view (S, *shape) of one layer's states. Raises: KeyError if it keeps none."""
        return self._layers[layer_index, name]

    def copy(self, source: int, target: int) -> None:
        """Copy one slot's states over another's."""
        self._check(source)
        self._check(target)
        for tensor in self._tensors:
            tensor[:, target] = tensor[:, source]

    def export(self, slot: int) -> tuple[Tensor, ...]:
        """Return copies of a slot's states in host memory: contiguous tensors (L, *shape)."""
        self._check(slot)
        return tuple(tensor[:, slot].to("cpu", copy=True) for tensor in self._tensors)

    def load(self, slot: int, exported: Sequence[Tensor]) -> None:
        """Write what `export` returned, of whichever slot, into a slot."""
        self._check(slot)
        for tensor, state in zip(self._tensors, exported, strict=True):
            tensor[:, slot] = state

    def zero(self, slot: int) -> None:
        """Set a slot's states to zero."""
        self._check(slot)
        for tensor in self._tensors:
            tensor[:, slot] = 0.0

    def poison(self, slots: Sequence[int]) -> None:
        """Fill slots, slot 0 allowed, with NaN: for tests, which show that nobody reads them."""
        for tensor in self._tensors:
            tensor[:, list(slots)] = float("nan")

    def checksum(self, slot: int) -> bytes:
        """Return a digest of the bytes of a slot's states, slot 0 allowed."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in self._tensors:
            digest.update(tensor[:, slot].contiguous().cpu().view(torch.uint8).numpy().data)
        return digest.digest()

    def _check(self, slot: int) -> None:
        assert 0 < slot <= self.num_slots, f"slot {slot} is not in 1..{self.num_slots}"
