"""The engine measured without HTTP: prefill and decode, and with a profile what each op takes of a step.

Builds the engine in this process: the torch half of it is imported when that happens, not before. Every row
of a batch is a request with a random prompt, greedy, which nothing ends early.
"""

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mambad.engine.config import EngineConfig
from mambad.engine.engine import Engine
from mambad.engine.errors import ConfigError
from mambad.engine.messages import EngineInfo
from mambad.engine.request import Submission
from mambad.engine.sampling_params import SamplingParams
from mambad.server.bench_offline_report import (
    OUTSIDE,
    OfflineReport,
    OfflineRun,
    OfflineSizes,
    OpShare,
    StepProfile,
)
from mambad.server.bench_report import percentile

if TYPE_CHECKING:
    from mambad.engine.op_profile import OpProfile


def measure_engine(config: EngineConfig, sizes: OfflineSizes, *, is_profiled: bool) -> OfflineReport:
    """Load the model and measure every batch size.

    Raises:
        LoadError, ConfigError: the model can't be run, or not with these sizes.
    """
    # Takes a second: torch.
    from mambad.engine.build import build_engine
    from mambad.engine.op_profile import OpProfile, read_bandwidth

    profile = OpProfile() if is_profiled else None
    engine, info = build_engine(config, wrap_ops=None if profile is None else profile.wrap)
    try:
        _check(sizes, info)
        bandwidth = None if profile is None else read_bandwidth(info.num_threads)
        bench = _Bench(engine, info, sizes, profile, bandwidth)
        runs = tuple(bench.run(batch) for batch in sizes.batches)
    finally:
        engine.close()
    return OfflineReport(info.plan, sizes, bandwidth, runs)


def _check(sizes: OfflineSizes, info: EngineInfo) -> None:
    if max(sizes.batches) > info.max_num_seqs:
        raise ConfigError(f"--batch {max(sizes.batches)}: memory holds {info.max_num_seqs} requests at once")
    if sizes.input_tokens + 2 * sizes.output_tokens > info.max_model_len:
        raise ConfigError(
            f"--input-tokens {sizes.input_tokens} and twice --output-tokens {sizes.output_tokens} are above "
            f"the model's {info.max_model_len} tokens a request"
        )


class _Bench:
    """Steps the engine with a stop-watch; the engine has no requests between two measurements."""

    def __init__(
        self,
        engine: Engine,
        info: EngineInfo,
        sizes: OfflineSizes,
        profile: "OpProfile | None",
        bandwidth: float | None,
    ) -> None:
        self._engine = engine
        self._info = info
        self._sizes = sizes
        self._profile = profile
        self._bandwidth = bandwidth
        self._draw = random.Random(0)
        self._num_submitted = 0

    def run(self, batch: int) -> OfflineRun:
        """Measure one batch size, after a pass that warms up."""
        self._prefill(batch)
        seconds, overhead = self._prefill(batch)
        prefill = self._profile_of("prefill", seconds, overhead)
        times, overhead = self._decode(batch)
        decode = self._profile_of("decode", times, overhead)
        ordered = sorted(1e3 * value for value in times)
        return OfflineRun(
            batch=batch,
            prefill_tokens_per_s=batch * self._sizes.input_tokens / sum(seconds),
            decode_tokens_per_s=batch * len(times) / sum(times),
            step_ms_p50=percentile(ordered, 50),
            step_ms_p99=percentile(ordered, 99),
            profiles=tuple(item for item in (prefill, decode) if item is not None),
        )

    def _prefill(self, batch: int) -> tuple[list[float], float]:
        """Compute prompts that want one token each; returns seconds a step and the stop-watch's own time."""
        self._submit(batch, 1)
        self._forget()
        times = []
        while self._engine.has_work:
            times.append(self._step()[0])
        return times, self._overhead()

    def _decode(self, batch: int) -> tuple[list[float], float]:
        """Compute `output_tokens` steps in which every row decodes; the prompts before are not measured."""
        ids = self._submit(batch, self._info.max_model_len - self._sizes.input_tokens)
        waiting = set(ids)
        while waiting:
            waiting -= self._step()[1]
        self._forget()
        times = [self._step()[0] for _ in range(self._sizes.output_tokens)]
        overhead = self._overhead()
        for request_id in ids:
            self._engine.abort(request_id)
        while self._engine.has_work:
            self._engine.step()
        return times, overhead

    def _submit(self, batch: int, max_tokens: int) -> list[str]:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        ids = []
        for _ in range(batch):
            self._num_submitted += 1
            prompt = self._draw.choices(range(self._info.vocab_size), k=self._sizes.input_tokens)
            ids.append(f"bench-{self._num_submitted}")
            self._engine.submit(Submission(ids[-1], prompt, params))
        return ids

    def _step(self) -> tuple[float, set[str]]:
        """Step once; returns its seconds and the requests that got a token."""
        start = time.perf_counter()
        outputs = self._engine.step()
        return time.perf_counter() - start, {item.request_id for item in outputs if item.token_ids}

    def _forget(self) -> None:
        if self._profile is not None:
            self._profile.reset()

    def _overhead(self) -> float:
        return 0.0 if self._profile is None else self._profile.overhead_s

    def _profile_of(self, kind: str, times: Sequence[float], overhead: float) -> StepProfile | None:
        if self._profile is None or self._bandwidth is None:
            return None
        total = sum(times) - overhead
        shares = []
        for op, record in self._profile.records.items():
            rate = record.num_bytes / record.seconds if record.num_bytes else None
            fraction = None if rate is None else rate / self._bandwidth
            share = record.seconds / total
            shares.append(
                OpShare(op, record.calls, 1e3 * record.seconds, share, record.num_bytes, rate, fraction)
            )
        shares.sort(key=lambda item: -item.total_ms)
        outside = total - sum(record.seconds for record in self._profile.records.values())
        shares.append(OpShare(OUTSIDE, len(times), 1e3 * outside, outside / total, 0, None, None))
        return StepProfile(kind, len(times), 1e3 * total, tuple(shares))
