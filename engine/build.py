"""Makes the parts of an engine and joins them: the one place that knows them all.

Also writes the plan: what was found, what it takes, what was chosen and why.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from mambad.engine.block_table import BlockTable
from mambad.engine.cache_manager import CacheManager
from mambad.engine.cache_plan import CacheNeeds, CachePlan, default_cache_bytes, plan_cache
from mambad.engine.captured_decoder import capture_decoder
from mambad.engine.cgroup import Allowance, allowed_threads, available_memory
from mambad.engine.config import EngineConfig
from mambad.engine.counters import Counters
from mambad.engine.eager_runner import EagerRunner
from mambad.engine.end_of_message import find_end_of_message_ids
from mambad.engine.engine import Engine
from mambad.engine.errors import ConfigError
from mambad.engine.faults import FaultInjector
from mambad.engine.grammar import GrammarError, Vocabulary
from mambad.engine.grammar_compiler import GrammarCompiler
from mambad.engine.hub import resolve_model
from mambad.engine.input_buffers import InputBuffers, capture_sizes
from mambad.engine.kv_pool import KVPool
from mambad.engine.lifecycle import Lifecycle, SchedulerLimits
from mambad.engine.loader import LoadFormat, ModelReport, inspect_model, load_inspected
from mambad.engine.messages import EngineInfo
from mambad.engine.model_inputs import Pools
from mambad.engine.models.decoder import Decoder
from mambad.engine.progress import ProgressCounter
from mambad.engine.quantization import plan_lines
from mambad.engine.sampler import Sampler
from mambad.engine.scheduler import Scheduler
from mambad.engine.spoiling_sampler import SpoilingSampler
from mambad.engine.state_pool import StatePool
from mambad.engine.weights import Progress
from mambad.kernels.ops import Ops
from mambad.kernels.selection import select_ops

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What start-up decides before any weight is read; `mambad check` prints it.

    Attributes:
        report: the model.
        ops: the kernels.
        cache: slots and blocks.
        threads: how many, and why.
        config: what was asked for.
        tokenizer_folder: where the tokenizer's files are.
    """

    report: ModelReport
    ops: Ops
    cache: CachePlan
    threads: Allowance
    config: EngineConfig
    tokenizer_folder: Path

    def lines(self) -> tuple[str, ...]:
        """Return the plan for people to read."""
        report, cache, spec = self.report, self.cache, self.report.spec
        slot_bytes, block_bytes = spec.slot_bytes(), spec.block_bytes(self.config.block_size)
        lines = [
            f"model     {self.config.model}: {spec.family}, {len(spec.layers)} layers, "
            f"{report.num_parameters / 1e6:.1f} M parameters",
            f"dtype     weights {_name(report.weight_dtype)} ({report.dtype_reason}), "
            f"state {self.config.state_dtype}",
            *plan_lines(report.quantization),
            f"memory    weights {_size(report.weight_bytes)}, states and blocks {_size(cache.num_bytes)}",
            f"slots     {cache.num_slots} of {_size(slot_bytes)}",
        ]
        if block_bytes:
            size = self.config.block_size
            lines.append(f"blocks    {cache.num_blocks} of {_size(block_bytes)}, {size} tokens each")
        lines += [
            f"length    {cache.max_model_len} tokens a request",
            f"kernels   {self.ops.name} ({self.ops.reason})",
            f"threads   {self.threads.amount} ({self.threads.reason})",
        ]
        return (*lines, *(f"note      {note}" for note in (*report.notes, *cache.notes)))


def plan_engine(config: EngineConfig) -> EnginePlan:
    """Find the model, choose kernels and divide the memory; reads no weights.

    Raises:
        LoadError: the model can't be served.
        ConfigError: a setting can't work with it.
    """
    folder = resolve_model(config.model, revision=config.revision, download_dir=config.download_dir)
    tokenizer_folder = folder
    if config.tokenizer is not None:
        tokenizer_folder = resolve_model(config.tokenizer, download_dir=config.download_dir)
    report = inspect_model(
        folder,
        dtype=config.dtype,
        load_format=cast(LoadFormat, config.load_format),
        quantization=config.quantization,
        tokenizer_folder=tokenizer_folder,
    )
    report = replace(report, spec=report.spec.with_ssm_dtype(config.state_dtype))
    threads = _share(allowed_threads(os.environ), config.data_parallel_size)
    if config.threads is not None:
        threads = Allowance(config.threads, "--threads")
    try:
        ops = select_ops(torch.device("cpu"), threads.amount)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    memory = _share(available_memory(), config.data_parallel_size)
    num_bytes = config.kv_cache_memory_bytes or default_cache_bytes(memory.amount, report.weight_bytes)
    spec = report.spec
    cache = plan_cache(
        CacheNeeds(spec.slot_bytes(), spec.block_bytes(config.block_size), config.block_size),
        num_bytes,
        max_num_seqs=config.max_num_seqs,
        num_state_slots=config.num_state_slots,
        max_model_len=config.max_model_len,
        model_max_len=spec.max_model_len,
    )
    return EnginePlan(report, ops, cache, threads, config, tokenizer_folder)


def build_engine(
    config: EngineConfig,
    progress: Progress | None = None,
    counter: ProgressCounter | None = None,
    wrap_ops: Callable[[Ops], Ops] | None = None,
) -> tuple[Engine, EngineInfo]:
    """Load the model and return an engine that is ready to step, with what the front end must know.

    Args:
        config: what to serve.
        progress: called while loading with bytes done, bytes in all, and what.
        counter: counted up within every step: the sign of life.
        wrap_ops: puts something around the kernels, such as a profiler.

    Raises:
        LoadError, ConfigError: as `plan_engine`.
    """
    start_s = time.monotonic()
    plan = plan_engine(config)
    on_layer = None if counter is None else counter.bump
    faults = None
    if config.enable_fault_injection:
        faults = FaultInjector(len(plan.report.spec.layers), on_layer)
    decoder = load_inspected(
        plan.report,
        ops=plan.ops if wrap_ops is None else wrap_ops(plan.ops),
        seed=config.seed,
        progress=progress,
        on_layer=on_layer,
    )
    runner, how = _build_runner(decoder, plan, faults, counter)
    logger.info("decode: %s", how)
    counters = Counters()
    cache = CacheManager(plan.cache.num_slots, plan.cache.num_blocks, config.block_size)
    limits = _limits(plan)
    requests = Lifecycle(cache, runner, limits, counters, time.monotonic, faults)
    grammars = _grammars(plan)
    scheduler = Scheduler(requests, cache, limits, counters, time.monotonic, grammars)
    engine = Engine(scheduler, cache, runner, counters, runs_ahead=config.async_scheduling, faults=faults)
    return engine, _info(plan, grammars, time.monotonic() - start_s)


def _share(allowance: Allowance, num_ranks: int) -> Allowance:
    """Return one rank's part."""
    if num_ranks == 1:
        return allowance
    return Allowance(max(allowance.amount // num_ranks, 1), f"{allowance.reason}, for {num_ranks} ranks")


def _build_runner(
    decoder: Decoder,
    plan: EnginePlan,
    faults: FaultInjector | None,
    counter: ProgressCounter | None,
) -> tuple[EagerRunner, str]:
    """Return the runner of a loaded model with pools and buffers as planned, and how it decodes."""
    cpu = torch.device("cpu")
    spec, cache, block_size = decoder.spec, plan.cache, plan.config.block_size
    max_blocks = -(-cache.max_model_len // block_size) if cache.num_blocks else 0
    states, kv = StatePool(spec, cache.num_slots, cpu), KVPool(spec, cache.num_blocks, block_size, cpu)
    table = BlockTable(cache.num_slots, max_blocks, cpu)
    sizes = capture_sizes(min(plan.config.max_num_seqs, cache.num_slots))
    captured, how = None, "eager (--enforce-eager)"
    if not plan.config.enforce_eager:
        address = None if counter is None else counter.address
        captured = capture_decoder(decoder, Pools(states, kv, table.rows), sizes[-1], address)
        how = "eager (these kernels can't be captured)"
        if captured is not None:
            how = f"captured ({captured.num_calls} calls, activations {_size(captured.num_bytes)})"
    runner = EagerRunner(
        decoder if captured is None else captured,
        states,
        kv,
        table,
        InputBuffers(sizes),
        _build_sampler(decoder, faults),
        None if faults is None else faults.before_step,
    )
    return runner, how


def _build_sampler(decoder: Decoder, faults: FaultInjector | None) -> Sampler:
    if faults is None:
        return Sampler(decoder.spec.eos_token_ids, decoder.ops)
    return SpoilingSampler(decoder.spec.eos_token_ids, decoder.ops, faults)


def _limits(plan: EnginePlan) -> SchedulerLimits:
    config, spec = plan.config, plan.report.spec
    return SchedulerLimits(
        max_num_seqs=min(config.max_num_seqs, plan.cache.num_slots),
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=plan.cache.max_model_len,
        eos_token_ids=frozenset(spec.eos_token_ids),
        end_of_message_ids=find_end_of_message_ids(plan.tokenizer_folder),
        slot_bytes=spec.slot_bytes(),
        block_bytes=spec.block_bytes(config.block_size),
        state_cache_bytes=config.state_cache_bytes,
        queue_timeout_s=config.queue_timeout,
        uses_priority=config.scheduling_policy == "priority",
        scrub_slots=config.scrub_slots,
    )


def _grammars(plan: EnginePlan) -> GrammarCompiler:
    try:
        return GrammarCompiler(Vocabulary.from_folder(plan.tokenizer_folder, plan.report.spec.eos_token_ids))
    except GrammarError as error:
        return GrammarCompiler(None, str(error))


def _info(plan: EnginePlan, grammars: GrammarCompiler, load_duration_s: float) -> EngineInfo:
    config, cache, spec = plan.config, plan.cache, plan.report.spec
    return EngineInfo(
        model=config.model,
        family=spec.family,
        num_parameters=plan.report.num_parameters,
        dtype=_name(plan.report.weight_dtype),
        state_dtype=config.state_dtype,
        quantization=config.quantization,
        device="cpu",
        kernels=plan.ops.name,
        vocab_size=spec.real_vocab_size,
        max_model_len=cache.max_model_len,
        max_num_seqs=min(config.max_num_seqs, cache.num_slots),
        num_slots=cache.num_slots,
        num_blocks=cache.num_blocks,
        block_size=config.block_size,
        slot_bytes=spec.slot_bytes(),
        block_bytes=spec.block_bytes(config.block_size),
        weight_bytes=plan.report.weight_bytes,
        num_threads=plan.threads.amount,
        runs_ahead=config.async_scheduling,
        eos_token_ids=spec.eos_token_ids,
        has_grammars=grammars.is_able,
        load_duration_s=load_duration_s,
        plan=plan.lines(),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _size(num_bytes: int) -> str:
    if num_bytes >= 1 << 30:
        return f"{num_bytes / (1 << 30):.2f} GiB"
    return f"{num_bytes / (1 << 20):.2f} MiB" if num_bytes >= 1 << 20 else f"{num_bytes / 1024:.1f} KiB"
