"""Executes batches on the CPU: the decoder, captured or not, reads padded buffers at fixed addresses.

One worker thread executes the launched steps in order, so a launched step is not a completed one, here as
on a GPU. `launch` and all other methods are for one calling thread; only `num_completed` and handles may be
read from anywhere. The runner keeps no account of slots and blocks: that a copy or a scrub meets no step
that uses them is the promise of the quarantine, whose end waits for `num_completed`.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mambad.engine.batch import Batch, StepResult
from mambad.engine.block_table import BlockTable, StagedRows
from mambad.engine.captured_decoder import CapturedDecoder
from mambad.engine.input_buffers import NUM_SETS, InputBuffers, StepInputs
from mambad.engine.kv_pool import KVPool
from mambad.engine.model_inputs import Pools
from mambad.engine.model_runner import ModelRunner
from mambad.engine.models.decoder import Decoder
from mambad.engine.runner import SwappedState
from mambad.engine.sampler import Sampler
from mambad.engine.state_pool import StatePool


class EagerStepHandle:
    """A launched step, to be completed by the worker thread. Any thread may wait on it."""

    def __init__(self, step_id: int) -> None:
        self._step_id = step_id
        self._event = threading.Event()
        self._outcome: StepResult | BaseException | None = None

    @property
    def step_id(self) -> int:
        """The batch's step_id."""
        return self._step_id

    def is_done(self) -> bool:
        """Whether the step has completed or failed."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the step has completed or failed; False when `timeout_s` seconds went by."""
        return self._event.wait(timeout_s)

    def result(self) -> StepResult:
        """Wait and return the step's results; raises what the step raised."""
        self._event.wait()
        if isinstance(self._outcome, StepResult):
            return self._outcome
        assert self._outcome is not None, "a step ends with a result or an exception"
        raise self._outcome

    def end(self, outcome: StepResult | BaseException) -> None:
        """Store the outcome and wake whoever waits. For the worker thread."""
        self._outcome = outcome
        self._event.set()


@dataclass(frozen=True, slots=True, eq=False)
class HostCopy:
    """A slot's states and n blocks in host memory, as the pools exported them."""

    states: tuple[Tensor, ...]
    blocks: tuple[Tensor, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of host memory."""
        return sum(tensor.nbytes for tensor in (*self.states, *self.blocks))


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    batch: Batch
    inputs: StepInputs
    table_rows: StagedRows
    handle: EagerStepHandle


class EagerRunner:
    """The `Runner` of the CPU.

    Args:
        decoder: the model; a captured one works in the same pools.
        states: its state pool.
        kv: its KV pool.
        block_table: rows for the slots of `states`.
        buffers: input buffers, large enough for every batch to come.
        sampler: draws the tokens.
        gate: called on the worker thread with the step_id before a step computes; tests hold steps back
            in it, or raise from it.
    """

    def __init__(
        self,
        decoder: Decoder | CapturedDecoder,
        states: StatePool,
        kv: KVPool,
        block_table: BlockTable,
        buffers: InputBuffers,
        sampler: Sampler,
        gate: Callable[[int], None] | None = None,
    ) -> None:
        self._states = states
        self._kv = kv
        self._table = block_table
        self._buffers = buffers
        self._gate = gate
        self._model = ModelRunner(decoder, Pools(states, kv, block_table.rows), sampler)
        self._num_completed = 0
        # The newest launches; the oldest of them read the buffers that the next launch fills.
        self._handles: deque[EagerStepHandle] = deque(maxlen=NUM_SETS)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="mambad-runner", daemon=True)
        self._worker.start()

    @property
    def num_completed(self) -> int:
        """Highest step_id that has completed or failed, 0 before the first; steps end in order."""
        return self._num_completed

    def launch(self, batch: Batch) -> EagerStepHandle:
        """Fill the input buffers and start the step; returns before it has completed.

        Step ids start at 1 and ascend. Waits while NUM_SETS steps are launched and not completed.
        """
        assert self._worker.is_alive(), "the runner is closed"
        assert batch.step_id > self._last_launched(), "step ids ascend"
        if len(self._handles) == NUM_SETS:
            self._handles[0].wait()
        for update in batch.table_updates:
            self._table.update(update.slot, update.first_column, update.block_ids)
        inputs = self._buffers.fill(batch)
        handle = EagerStepHandle(batch.step_id)
        self._handles.append(handle)
        self._jobs.put(_Job(batch, inputs, self._table.stage(), handle))
        return handle

    def swap_out(self, slot: int, block_ids: Sequence[int]) -> HostCopy:
        """Copy a slot's states and the blocks to host memory, at once. No launched step may use them."""
        return HostCopy(self._states.export(slot), self._kv.export(block_ids))

    def swap_in(self, swapped: SwappedState, slot: int, block_ids: Sequence[int]) -> None:
        """Copy them back into a slot and as many blocks, at once. No launched step may use these.

        The block table is not touched: the batch that goes on with the request carries its rows.
        """
        assert isinstance(swapped, HostCopy), "this runner takes back what it gave"
        self._states.load(slot, swapped.states)
        self._kv.load(block_ids, swapped.blocks)

    def clear_row(self, slot: int) -> None:
        """Set the slot's row of the block table to null: on the host now, on the device later."""
        self._table.clear(slot)

    def scrub(self, slot: int) -> None:
        """Zero a slot's states, at once. No launched step may use it."""
        self._states.zero(slot)

    def poison(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Fill slots and blocks with NaN, at once. No launched step may use them, 0 excepted."""
        self._states.poison(slots)
        self._kv.poison(block_ids)

    def checksum(self, slot: int) -> bytes:
        """Return a digest of a slot's states after all launched steps: for tests."""
        self._wait_until_idle()
        return self._states.checksum(slot)

    def block_checksum(self, block_id: int) -> bytes:
        """Return a digest of a block's keys and values after all launched steps: for tests."""
        self._wait_until_idle()
        return self._kv.checksum(block_id)

    def close(self) -> None:
        """Finish the launched steps and end the worker thread. A second call does nothing."""
        self._jobs.put(None)
        self._worker.join()

    def _last_launched(self) -> int:
        return self._handles[-1].step_id if self._handles else 0

    def _wait_until_idle(self) -> None:
        if self._handles:
            self._handles[-1].wait()

    # ---- on the worker thread ------------------------------------------------------------------------

    def _work(self) -> None:
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                self._run(job)

    def _run(self, job: _Job) -> None:
        """Execute a step; whatever it raises belongs to its handle, and the next step runs all the same."""
        outcome: StepResult | BaseException
        try:
            # Before anything can fail: later steps count on these rows.
            self._table.commit(job.table_rows)
            outcome = self._compute(job)
        except BaseException as error:
            outcome = error
        self._num_completed = job.batch.step_id
        job.handle.end(outcome)

    def _compute(self, job: _Job) -> StepResult:
        if self._gate is not None:
            self._gate(job.batch.step_id)
        start_s = time.perf_counter()
        rows = self._model.execute(job.batch, job.inputs)
        decode = job.inputs.decode
        graph_rows = 0 if decode is None else decode.slots.shape[0]
        return StepResult(
            step_id=job.batch.step_id,
            rows=rows,
            duration_s=time.perf_counter() - start_s,
            num_padding_rows=max(graph_rows - len(job.batch.decodes), 0),
            graph_rows=graph_rows,
        )
