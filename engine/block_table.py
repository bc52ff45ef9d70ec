"""Which blocks each slot's request holds: rows on the host, and their copy that steps read.

Owns both copies. The host rows change when the scheduler says so; the device rows change only between
steps, to what `stage` had captured, so a step that is executing never sees an update of a later one. Row s
belongs to slot s; row 0 and every column without a block hold block 0, the null block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StagedRows:
    """Rows as they stood at a launch: slots (n,) int64, blocks (n, M) int32, both copies."""

    slots: Tensor
    blocks: Tensor


_NO_ROWS = StagedRows(torch.zeros(0, dtype=torch.int64), torch.zeros((0, 0), dtype=torch.int32))


class BlockTable:
    """S = num_slots + 1 rows of M = max_blocks columns, all null at first.

    Args:
        num_slots: slots, the null slot not counted.
        max_blocks: most blocks that one request can hold; 0 for a model without attention, where one
            column of null blocks stands for the ops' sake.
        device: where steps read the rows.
    """

    def __init__(self, num_slots: int, max_blocks: int, device: torch.device) -> None:
        shape = (num_slots + 1, max(max_blocks, 1))
        self._host = np.zeros(shape, dtype=np.int32)
        self._dirty: set[int] = set()
        self.rows: Tensor = torch.zeros(shape, dtype=torch.int32, device=device)
        """(S, M) int32 — what steps read; never the memory of the host rows."""

    def update(self, slot: int, first_column: int, block_ids: Sequence[int]) -> None:
        """Set the slot's columns from `first_column` on, on the host."""
        end = first_column + len(block_ids)
        assert 0 < slot < self._host.shape[0], f"slot {slot} has no row to write"
        assert 0 <= first_column <= end <= self._host.shape[1], f"columns {first_column}..{end} do not exist"
        self._host[slot, first_column:end] = block_ids
        self._dirty.add(slot)

    def clear(self, slot: int) -> None:
        """Set the slot's whole row to null, on the host."""
        assert 0 < slot < self._host.shape[0], f"slot {slot} has no row to clear"
        self._host[slot] = 0
        self._dirty.add(slot)

    def stage(self) -> StagedRows:
        """Capture the rows that changed since the last call, for the step that is being launched."""
        if not self._dirty:
            return _NO_ROWS
        slots = sorted(self._dirty)
        self._dirty.clear()
        return StagedRows(torch.tensor(slots, dtype=torch.int64), torch.from_numpy(self._host[slots]))

    def commit(self, staged: StagedRows) -> None:
        """Write captured rows to the device: once a step, in the order of launch, before it computes."""
        if staged is not _NO_ROWS:
            self.rows[staged.slots] = staged.blocks.to(self.rows.device)
