"""A real engine over a tiny checkpoint that records, bit for bit, what every request saw and left behind.

Per request: the bytes of the logits behind every token, the tokens with their log-probabilities, and at
its end the bytes of its state and of its keys and values. Free slots and blocks are NaN at the start.
"""

import functools
import hashlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch import Tensor
from toy_models import toy_model

from mambad.engine.batch import SampleSpec
from mambad.engine.block_table import BlockTable
from mambad.engine.cache_manager import CacheManager
from mambad.engine.captured_decoder import capture_decoder
from mambad.engine.counters import Counters
from mambad.engine.eager_runner import EagerRunner
from mambad.engine.engine import Engine
from mambad.engine.input_buffers import InputBuffers, capture_sizes
from mambad.engine.kv_pool import KVPool
from mambad.engine.lifecycle import Lifecycle, SchedulerLimits
from mambad.engine.loader import load_model
from mambad.engine.model_inputs import Pools
from mambad.engine.models.decoder import Decoder
from mambad.engine.models.spec import StateDtype
from mambad.engine.outputs import RequestOutput
from mambad.engine.request import Request, Submission
from mambad.engine.sampler import SampledRow, Sampler
from mambad.engine.sampling_params import SamplingParams
from mambad.engine.scheduler import Scheduler
from mambad.engine.state_pool import StatePool
from mambad.kernels.ops import Ops
from mambad.kernels.selection import KERNELS_VARIABLE, select_ops

BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096


@functools.cache
def toy_ops(kernels: str, num_threads: int = 1) -> Ops:
    """Return kernels by name: cpu or reference. Raises: ValueError when they can't run here."""
    with mock.patch.dict(os.environ, {KERNELS_VARIABLE: kernels}):
        return select_ops(torch.device("cpu"), num_threads)


@functools.cache
def load_toy(name: str, kernels: str, num_threads: int = 1, quantization: str = "none") -> Decoder:
    """Return a toy checkpoint loaded with the kernels named."""
    ops = toy_ops(kernels, num_threads)
    return load_model(toy_model(name).folder, ops=ops, quantization=quantization)


class RecordingSampler(Sampler):
    """A sampler that keeps the bytes of every row of logits, by seed and position."""

    def __init__(self, ops: Ops) -> None:
        super().__init__((), ops)
        self.logits: dict[tuple[int, int], bytes] = {}

    def sample(self, logits: Tensor, specs: Sequence[SampleSpec]) -> list[SampledRow]:
        for row, spec in enumerate(specs):
            key = (spec.params.seed, spec.position)
            digest = hashlib.sha256(logits[row].contiguous().numpy().tobytes()).digest()
            assert self.logits.setdefault(key, digest) == digest, "the same row twice, with other bytes"
        return super().sample(logits, specs)


@dataclass
class Record:
    """What one request saw and left behind."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    logits: dict[int, bytes] = field(default_factory=dict)
    state: bytes = b""
    keys_and_values: bytes = b""
    finish_reason: str | None = None


class EqualityEngine:
    """See the head of this file.

    Args:
        decoder: a loaded toy.
        num_slots, num_blocks: of the pools.
        budget: tokens a step.
        runs_ahead: whether steps are launched ahead.
        state_cache_bytes: host memory for preempted requests.
        eos_token_ids, uses_priority: see SchedulerLimits.
        reads_states: whether states are recorded, which waits for all launched steps.
        gate: see EagerRunner.
        is_eager: whether the decode pass is not captured.
        state_dtype: of the ssm states.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        num_slots: int = 4,
        num_blocks: int = 600,
        budget: int = 512,
        runs_ahead: bool = False,
        state_cache_bytes: int = 1 << 30,
        eos_token_ids: Sequence[int] = (),
        uses_priority: bool = False,
        reads_states: bool = True,
        gate: Callable[[int], None] | None = None,
        is_eager: bool = False,
        state_dtype: StateDtype = "float32",
    ) -> None:
        cpu = torch.device("cpu")
        spec = decoder.spec
        self._num_blocks = num_blocks if spec.block_bytes(BLOCK_SIZE) else 0
        self.states = StatePool(spec.with_ssm_dtype(state_dtype), num_slots, cpu)
        self.kv = KVPool(spec, self._num_blocks, BLOCK_SIZE, cpu)
        table = BlockTable(num_slots, MAX_MODEL_LEN // BLOCK_SIZE if self._num_blocks else 0, cpu)
        self.sampler = RecordingSampler(decoder.ops)
        buffers = InputBuffers(capture_sizes(num_slots))
        pools = Pools(self.states, self.kv, table.rows)
        captured = None if is_eager else capture_decoder(decoder, pools, num_slots)
        self.runner = EagerRunner(
            captured or decoder, self.states, self.kv, table, buffers, self.sampler, gate
        )
        self.runner.poison(range(num_slots + 1), range(self._num_blocks + 1))
        self.counters = Counters()
        self.cache = CacheManager(num_slots, self._num_blocks, BLOCK_SIZE)
        limits = SchedulerLimits(
            max_num_seqs=num_slots,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=frozenset(eos_token_ids),
            state_cache_bytes=state_cache_bytes,
            uses_priority=uses_priority,
        )
        requests = Lifecycle(self.cache, self.runner, limits, self.counters, lambda: 0.0)
        self.scheduler = Scheduler(requests, self.cache, limits, self.counters, lambda: 0.0)
        self.engine = Engine(
            self.scheduler, self.cache, self.runner, self.counters, runs_ahead=runs_ahead, clock=lambda: 0.0
        )
        self.records: dict[str, Record] = {}
        self._finish = self.scheduler.requests.finish
        if reads_states:
            self.scheduler.requests.finish = self._record_and_finish  # type: ignore[method-assign]

    def submit(
        self, name: str, prompt: Sequence[int], seed: int, priority: int = 0, **params: object
    ) -> None:
        made = SamplingParams(seed=seed, num_logprobs=3, **params)  # type: ignore[arg-type]
        self.records[name] = Record()
        self.engine.submit(Submission(name, list(prompt), made, priority))

    def step(self) -> list[RequestOutput]:
        outputs = self.engine.step()
        for output in outputs:
            record = self.records[output.request_id]
            record.tokens.extend(output.token_ids)
            record.logprobs.extend(output.logprobs)
            record.finish_reason = output.finish_reason
        return outputs

    def run(self, arrivals: Sequence[tuple[int, Callable[[], None]]] = ()) -> dict[str, Record]:
        """Step until all is done; each arrival happens before the step of its number."""
        waiting = deque(sorted(arrivals, key=lambda arrival: arrival[0]))
        for number in range(100_000):
            while waiting and waiting[0][0] <= number:
                waiting.popleft()[1]()
            if not waiting and not self.engine.has_work:
                break
            self.step()
        self.engine.step()
        assert self.cache.slot_counts()["free"] == self.cache.slots.capacity
        assert self.cache.block_counts()["free"] == self.cache.blocks.capacity
        self.runner.close()
        return self.records

    def _record_and_finish(self, request: Request, reason: str, **rest: object) -> None:
        if self.cache.holds(request.key):
            record = self.records[request.request_id]
            allocation = self.cache.allocation(request.key)
            record.state = self.runner.checksum(allocation.slot.id)
            record.keys_and_values = self._keys_and_values(allocation.block_ids, request.num_computed_tokens)
            seed = request.params.seed
            record.logits = {
                position: digest for (of, position), digest in self.sampler.logits.items() if of == seed
            }
        self._finish(request, reason, **rest)  # type: ignore[arg-type]

    def _keys_and_values(self, block_ids: Sequence[int], num_tokens: int) -> bytes:
        digest = hashlib.sha256()
        layers = [i for i, layer in enumerate(self.kv_layers()) if layer]
        for index in layers:
            for cache in self.kv.layer(index):
                rows = cache[list(block_ids)].flatten(0, 1)[:num_tokens]
                digest.update(rows.contiguous().numpy().tobytes())
        return digest.digest()

    def kv_layers(self) -> list[bool]:
        """Return, for each layer, whether it keeps keys and values."""
        attention = self._spec().attention_layers()
        return [index in attention for index in range(len(self._spec().layers))]

    def _spec(self):  # type: ignore[no-untyped-def]
        return self.runner._model._decoder.spec
