"""A runner that computes nothing but keeps honest books, and an engine around it.

Each fake slot holds a hash of exactly the tokens that went through it, each fake block the tokens written
to it. The next token is a function of that hash, so stale, mixed, skipped or repeated state is a wrong
token and not a guess. Steps execute when `result` or `wait` is called, or when the test says so, so that
launched is not completed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from mambad.engine.batch import TOKEN_OF_LAUNCHED_STEP, Batch, RowResult, SampleSpec, StepResult
from mambad.engine.cache_manager import CacheManager
from mambad.engine.counters import Counters
from mambad.engine.engine import Engine
from mambad.engine.lifecycle import Lifecycle, SchedulerLimits
from mambad.engine.outputs import RequestOutput
from mambad.engine.request import Submission
from mambad.engine.sampling_params import SamplingParams
from mambad.engine.scheduler import Scheduler

VOCABULARY = 50
EOS = 49
POISON = b"poison"


def extend(state: bytes, token_id: int) -> bytes:
    """Return the state after one more token."""
    return hashlib.blake2b(state + token_id.to_bytes(4, "little"), digest_size=8).digest()


def next_token(state: bytes, keys: Sequence[int], spec: SampleSpec) -> int:
    """Return the token that follows, from the state and from all tokens that attention sees."""
    seen = b"".join(key.to_bytes(4, "little") for key in keys)
    key = f"{spec.params.seed}/{spec.params.choice_index}/{spec.position}".encode()
    digest = hashlib.blake2b(state + seen + key, digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def expected_tokens(
    prompt: Sequence[int], params: SamplingParams, max_model_len: int = 10**6, has_blocks: bool = False
) -> list[int]:
    """Return the output of a request that is alone and undisturbed."""
    state, tokens = b"", list(prompt)
    for token in tokens:
        state = extend(state, token)
    output: list[int] = []
    while len(output) < params.max_tokens and len(tokens) < max_model_len:
        spec = SampleSpec(params, len(tokens), len(output), tokens, len(prompt))
        token = next_token(state, tokens if has_blocks else [], spec)
        output.append(token)
        tokens.append(token)
        if (token == EOS and not params.ignore_eos) or token in params.stop_token_ids:
            break
        state = extend(state, token)
    return output


@dataclass
class FakeSwapped:
    """A state and blocks in host memory."""

    state: bytes
    blocks: list[dict[int, int]]
    num_bytes: int


class FakeHandle:
    """A launched step of `FakeRunner`."""

    def __init__(self, runner: "FakeRunner", batch: Batch) -> None:
        self._runner = runner
        self.step_id = batch.step_id
        self.outcome: StepResult | Exception | None = None

    def wait(self, timeout_s: float | None = None) -> bool:
        self._runner.complete_through(self.step_id)
        return True

    def result(self) -> StepResult:
        self.wait()
        assert self.outcome is not None
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class FakeRunner:
    """Keeps hashes for states; see the head of this file."""

    def __init__(self, num_slots: int, num_blocks: int, block_size: int, bytes_per_swap: int = 10) -> None:
        self.block_size = block_size
        self.states: list[bytes] = [POISON] * (num_slots + 1)
        self.blocks: list[dict[int, int]] = [{} for _ in range(num_blocks + 1)]
        self.host_table: list[dict[int, int]] = [{} for _ in range(num_slots + 1)]
        self.last_tokens = [-7] * (num_slots + 1)
        self.num_completed = 0
        self.launched: list[tuple[Batch, list[dict[int, int]], list[int], FakeHandle]] = []
        self.failing_steps = 0
        self.nonfinite_keys: set[int] = set()
        self.bytes_per_swap = bytes_per_swap
        self.scrubbed: list[int] = []
        self.num_rows: list[int] = []
        self.decode_slots = [0] * (2 * num_slots + 2)

    def launch(self, batch: Batch) -> FakeHandle:
        for update in batch.table_updates:
            for offset, block in enumerate(update.block_ids):
                self.host_table[update.slot][update.first_column + offset] = block
        handle = FakeHandle(self, batch)
        num_rows = max(len(batch.decodes), batch.min_decode_rows, int(batch.is_dummy))
        self.fill_decode_slots([row.slot for row in batch.decodes], num_rows + num_rows % 2)
        padding = self.decode_slots[len(batch.decodes) : num_rows + num_rows % 2]
        self.launched.append((batch, [dict(row) for row in self.host_table], padding, handle))
        return handle

    def fill_decode_slots(self, slots: list[int], size: int) -> None:
        """Write the persistent buffer of the decode path: rows, then padding up to `size`."""
        self.decode_slots[:size] = slots + [0] * (size - len(slots))

    def complete_through(self, step_id: int) -> None:
        while self.launched and self.launched[0][0].step_id <= step_id:
            batch, table, padding, handle = self.launched.pop(0)
            try:
                handle.outcome = self._execute(batch, table)
                for slot in padding:  # a padded row advances whatever its slot holds, as a kernel would
                    self.states[slot] = extend(self.states[slot], 0)
            except Exception as error:
                handle.outcome = error
            self.num_completed = batch.step_id

    def swap_out(self, slot: int, block_ids: Sequence[int]) -> FakeSwapped:
        self._assert_unused(slot)
        return FakeSwapped(self.states[slot], [dict(self.blocks[b]) for b in block_ids], self.bytes_per_swap)

    def swap_in(self, swapped: FakeSwapped, slot: int, block_ids: Sequence[int]) -> None:
        self.states[slot] = swapped.state
        for block, content in zip(block_ids, swapped.blocks, strict=True):
            self.blocks[block] = dict(content)

    def clear_row(self, slot: int) -> None:
        self.host_table[slot].clear()

    def scrub(self, slot: int) -> None:
        self.states[slot] = b""
        self.scrubbed.append(slot)

    def poison(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        for slot in slots:
            self.states[slot] = POISON
        for block in block_ids:
            self.blocks[block] = dict.fromkeys(range(self.block_size), 9999)

    def close(self) -> None:
        self.complete_through(10**9)

    def _assert_unused(self, slot: int) -> None:
        for batch, _, _, _ in self.launched:
            assert all(item.slot != slot for item in (*batch.prefills, *batch.decodes))

    def _execute(self, batch: Batch, table: list[dict[int, int]]) -> StepResult:
        if self.failing_steps and not batch.is_dummy:
            self.failing_steps -= 1
            raise RuntimeError("injected")
        rows = []
        for span in batch.prefills:
            state = b"" if span.start == 0 else self.states[span.slot]
            assert span.chunk_ends[-1] == span.start + len(span.token_ids)
            for offset, token in enumerate(span.token_ids):
                state = self._consume(state, span.slot, span.start + offset, token, table)
            rows.append(self._sample(span.request_key, span.slot, span.sample, state, batch, table))
        for row in batch.decodes:
            token = row.token_id
            if token == TOKEN_OF_LAUNCHED_STEP:
                token = self.last_tokens[row.slot]
            state = self._consume(self.states[row.slot], row.slot, row.position, token, table)
            rows.append(self._sample(row.request_key, row.slot, row.sample, state, batch, table))
        self.num_rows.append(len(rows))
        return StepResult(batch.step_id, tuple(rows), 0.001)

    def _consume(
        self, state: bytes, slot: int, position: int, token: int, table: list[dict[int, int]]
    ) -> bytes:
        assert slot > 0
        if len(self.blocks) > 1:
            block = table[slot][position // self.block_size]
            assert block > 0
            self.blocks[block][position % self.block_size] = token
        self.states[slot] = extend(state, token)
        return self.states[slot]

    def _sample(
        self,
        key: int,
        slot: int,
        spec: SampleSpec | None,
        state: bytes,
        batch: Batch,
        table: list[dict[int, int]],
    ) -> RowResult:
        if spec is None:
            return RowResult(key, None, is_finite=key not in self.nonfinite_keys)
        keys: list[int] = list(spec.token_ids)[: spec.position]
        if len(self.blocks) > 1:
            keys = [
                self.blocks[table[slot][p // self.block_size]][p % self.block_size]
                for p in range(spec.position)
            ]
        token = next_token(state, keys if len(self.blocks) > 1 else [], spec)
        self.last_tokens[slot] = token
        return RowResult(key, token, is_finite=key not in self.nonfinite_keys)


class ToyEngine:
    """An engine over `FakeRunner`, with everything that it delivered."""

    def __init__(
        self,
        num_slots: int = 2,
        num_blocks: int = 0,
        block_size: int = 4,
        runs_ahead: bool = False,
        **limits: object,
    ) -> None:
        self.now = 0.0
        self.counters = Counters()
        self.cache = CacheManager(num_slots, num_blocks, block_size)
        self.runner = FakeRunner(num_slots, num_blocks, block_size)
        defaults: dict[str, object] = {
            "max_num_seqs": num_slots,
            "max_num_batched_tokens": 128,
            "max_model_len": 1000,
            "eos_token_ids": frozenset({EOS}),
        }
        self.limits = SchedulerLimits(**{**defaults, **limits})  # type: ignore[arg-type]
        clock = lambda: self.now  # noqa: E731
        requests = Lifecycle(self.cache, self.runner, self.limits, self.counters, clock)
        self.scheduler = Scheduler(requests, self.cache, self.limits, self.counters, clock)
        self.engine = Engine(
            self.scheduler, self.cache, self.runner, self.counters, runs_ahead=runs_ahead, clock=clock
        )
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, RequestOutput] = {}

    def submit(self, request_id: str, prompt: Sequence[int], **params: object) -> SamplingParams:
        made = SamplingParams(**params)  # type: ignore[arg-type]
        priority = 0
        self.engine.submit(Submission(request_id, list(prompt), made, priority))
        return made

    def step(self) -> None:
        self.deliver(self.engine.step())

    def deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                assert output.request_id not in self.finished, "finished twice"
                self.finished[output.request_id] = output

    def run(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def assert_all_free(self) -> None:
        self.scheduler.requests.settle()
        assert self.engine.slot_counts()["free"] == self.cache.slots.capacity
        assert self.engine.block_counts()["free"] == self.cache.blocks.capacity
        assert self.cache.is_conserved()
