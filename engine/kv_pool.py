"""Keys and values of the attention layers, in blocks of `block_size` tokens, as tensors.

Owns their memory and the copies to and from the host. Which block belongs to whom is decided elsewhere
(`mambad.engine.id_pool`, `mambad.engine.cache_manager`). Block 0 is the null block: no token is written to
it and nothing real reads it. Memory is not initialised: attention reads only positions that were written.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from mambad.engine.models.spec import ModelSpec
from mambad.engine.pool_memory import empty_pool


class KVPool:
    """Blocks 0..num_blocks of all attention layers, NB = num_blocks + 1; no tensors without attention.

    No method may touch a block that a launched step still uses.

    Args:
        spec: the model; its attention layers have blocks.
        num_blocks: blocks, the null block not counted.
        block_size: tokens a block.
        device: where the blocks live.
    """

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        for index, attention in spec.attention_layers().items():
            shape = (num_blocks + 1, block_size, attention.kv_heads, attention.head_dim)
            keys, values = (empty_pool(shape, torch.float32, device) for _ in range(2))
            self._layers[index] = (keys, values)
        self._tensors = [tensor for pair in self._layers.values() for tensor in pair]

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks, the null block included."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def layer(self, layer_index: int) -> tuple[Tensor, Tensor]:
        """Return (keys, values) of one layer, each (NB, block_size, Hkv, Dh) float32.

        Raises:
            KeyError: the layer is no attention layer.
        """
        return self._layers[layer_index]

    def export(self, block_ids: Sequence[int]) -> tuple[Tensor, ...]:
        """Return copies of n blocks in host memory: contiguous tensors (n, block_size, Hkv, Dh)."""
        self._check(block_ids)
        return tuple(tensor[list(block_ids)].cpu() for tensor in self._tensors)

    def load(self, block_ids: Sequence[int], exported: Sequence[Tensor]) -> None:
        """Write what `export` returned, of whichever n blocks, into n distinct blocks."""
        self._check(block_ids)
        for tensor, blocks in zip(self._tensors, exported, strict=True):
            tensor[list(block_ids)] = blocks.to(tensor.device)

    def poison(self, block_ids: Sequence[int]) -> None:
        """Fill blocks, block 0 allowed, with NaN: for tests, which show that nobody reads them."""
        for tensor in self._tensors:
            tensor[list(block_ids)] = float("nan")

    def checksum(self, block_id: int) -> bytes:
        """Return a digest of the bytes of a block in all layers, block 0 allowed."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in self._tensors:
            digest.update(tensor[block_id].cpu().numpy().data)
        return digest.digest()

    def _check(self, block_ids: Sequence[int]) -> None:
        assert all(0 < i <= self.num_blocks for i in block_ids), f"{block_ids} not in 1..{self.num_blocks}"
