"""A tiny random hybrid model in an `EagerRunner`, and requests that a test drives through it by hand.

All slots and blocks, the null ones included, are NaN at first, so that whoever reads what it should not
read shows it. Nothing here schedules: a test says what each step holds.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from mambad.engine.batch import (
    TOKEN_OF_LAUNCHED_STEP,
    Batch,
    DecodeRow,
    PrefillSpan,
    RowResult,
    SampleSpec,
    TableUpdate,
)
from mambad.engine.block_table import BlockTable
from mambad.engine.cuts import chunk_ends, find_cuts
from mambad.engine.eager_runner import EagerRunner
from mambad.engine.input_buffers import InputBuffers
from mambad.engine.kv_pool import KVPool
from mambad.engine.models.decoder import Decoder
from mambad.engine.models.granite_hybrid import rules
from mambad.engine.models.spec import AttentionSpec, LayerSpec, Mamba2Spec, MlpSpec, ModelSpec, NormSpec
from mambad.engine.outputs import TokenLogprobs
from mambad.engine.sampler import Sampler
from mambad.engine.sampling_params import SamplingParams
from mambad.engine.state_pool import StatePool
from mambad.engine.weights import RandomSource, Weights
from mambad.kernels.reference.ops import ReferenceOps

BLOCK_SIZE = 16
BLOCKS_A_SLOT = 10
NUM_SLOTS = 4
SIZES = (1, 2, 4)
VOCABULARY = 61


def toy_spec() -> ModelSpec:
    """Mamba-2, attention, Mamba-2, each with an mlp."""
    norm, mlp = NormSpec(1e-5), MlpSpec(24)
    mamba = Mamba2Spec(
        num_heads=4,
        head_dim=8,
        state_size=8,
        num_groups=1,
        conv_width=4,
        dt_limit=(0.0, float("inf")),
        norm_eps=1e-5,
        has_conv_bias=True,
        has_proj_bias=False,
    )
    attention = AttentionSpec(num_heads=4, kv_heads=2, head_dim=4, scale=1.5, has_bias=False)
    return ModelSpec(
        family="granitemoehybrid",
        vocab_size=VOCABULARY,
        real_vocab_size=VOCABULARY,
        hidden_size=16,
        layers=tuple(LayerSpec(norm, mixer, norm, mlp) for mixer in (mamba, attention, mamba)),
        tied=False,
        final_norm=norm,
        logits_scaling=0.4,
    )


@functools.cache
def toy_decoder() -> Decoder:
    """Return the random model; it keeps no state, so tests share it."""
    spec = toy_spec()
    return Decoder(spec, Weights(rules(spec), RandomSource(3), torch.float32, None), ReferenceOps("tests"))


class Gate:
    """Holds back steps on the worker thread, or makes them fail."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self._closed: dict[int, threading.Event] = {}
        self._reached: dict[int, threading.Event] = {}

    def __call__(self, step_id: int) -> None:
        if step_id in self._closed:
            self._reached[step_id].set()
            assert self._closed[step_id].wait(10), "the test never opened the gate"
        if step_id in self.failing:
            raise RuntimeError(f"step {step_id} was made to fail")

    def close(self, step_id: int) -> None:
        """Hold this step back from now on."""
        self._closed[step_id] = threading.Event()
        self._reached[step_id] = threading.Event()

    def wait_for(self, step_id: int) -> None:
        """Wait until this step stands at the gate."""
        assert self._reached[step_id].wait(10), "the step never came"

    def open(self, step_id: int) -> None:
        """Let this step go on."""
        self._closed[step_id].set()


@dataclass(frozen=True, slots=True)
class Rig:
    """A runner and its parts."""

    runner: EagerRunner
    states: StatePool
    kv: KVPool
    table: BlockTable


@contextmanager
def toy_rig(gate: Callable[[int], None] | None = None, decoder: Decoder | None = None) -> Iterator[Rig]:
    """Make a runner, and close it at the end."""
    cpu = torch.device("cpu")
    decoder = decoder or toy_decoder()
    states = StatePool(decoder.spec, NUM_SLOTS, cpu)
    kv = KVPool(decoder.spec, NUM_SLOTS * BLOCKS_A_SLOT, BLOCK_SIZE, cpu)
    table = BlockTable(NUM_SLOTS, BLOCKS_A_SLOT, cpu)
    runner = EagerRunner(
        decoder, states, kv, table, InputBuffers(SIZES), Sampler([0], ReferenceOps("tests")), gate
    )
    runner.poison(range(NUM_SLOTS + 1), range(NUM_SLOTS * BLOCKS_A_SLOT + 1))
    try:
        yield Rig(runner, states, kv, table)
    finally:
        runner.close()


@dataclass
class Client:
    """One request: what it asks for, what it was given, and how far it has come."""

    slot: int
    prompt: Sequence[int]
    params: SamplingParams
    num_launched: int = 0
    num_drawn: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Blocks of the slot's own, in no order."""
        first = (self.slot - 1) * BLOCKS_A_SLOT + 1
        return tuple(reversed(range(first, first + BLOCKS_A_SLOT)))

    @property
    def table_update(self) -> TableUpdate:
        return TableUpdate(self.slot, 0, self.block_ids)

    def span(self, end: int | None = None) -> PrefillSpan:
        """Return the next span of the prompt; a token is drawn at the prompt's end."""
        start, end = self.num_launched, end or len(self.prompt)
        is_last = end == len(self.prompt)
        self.num_launched = end
        return PrefillSpan(
            request_key=self.slot,
            slot=self.slot,
            token_ids=self.prompt[start:end],
            start=start,
            chunk_ends=tuple(chunk_ends(find_cuts(self.prompt, frozenset()), start, end)),
            sample=self._sample() if is_last else None,
            num_prompt_logprobs=self.params.num_prompt_logprobs,
            next_token_id=None if is_last else self.prompt[end],
        )

    def row(self) -> DecodeRow:
        """Return the next decode row; its token is that of the launched step when it is not known yet."""
        tokens = [*self.prompt, *self.output]
        position = self.num_launched
        self.num_launched += 1
        token_id = tokens[position] if position < len(tokens) else TOKEN_OF_LAUNCHED_STEP
        return DecodeRow(self.slot, self.slot, token_id, position, self._sample())

    def take(self, row: RowResult) -> None:
        """Take in a row of a completed step."""
        assert row.request_key == self.slot
        assert row.is_finite
        self.prompt_logprobs.extend(row.prompt_logprobs)
        if row.token_id is not None:
            self.output.append(row.token_id)
            self.logprobs.append(row.logprobs)

    def _sample(self) -> SampleSpec:
        spec = SampleSpec(
            params=self.params,
            position=len(self.prompt) + self.num_drawn,
            num_generated=self.num_drawn,
            token_ids=[*self.prompt, *self.output],
            num_prompt_tokens=len(self.prompt),
        )
        self.num_drawn += 1
        return spec


def digests(runner: EagerRunner, client: Client) -> list[bytes]:
    """Return checksums of a request's state and of its full blocks, which hold no rest of NaN."""
    full = client.num_launched // BLOCK_SIZE
    return [runner.checksum(client.slot), *(runner.block_checksum(i) for i in client.block_ids[:full])]


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a request gives when it is alone, in one span, and each step waits for the one before."""

    client: Client
    digests: list[bytes]


def run_alone(slot: int, prompt: Sequence[int], params: SamplingParams, num_tokens: int) -> Undisturbed:
    """Compute `num_tokens` tokens of a request and consume all but the last."""
    client = Client(slot, prompt, params)
    with toy_rig() as rig:
        batch = Batch(1, prefills=(client.span(),), table_updates=(client.table_update,))
        client.take(rig.runner.launch(batch).result().rows[0])
        for step_id in range(2, num_tokens + 1):
            client.take(rig.runner.launch(Batch(step_id, decodes=(client.row(),))).result().rows[0])
        return Undisturbed(client, digests(rig.runner, client))


def assert_equal(client: Client, expected: Undisturbed) -> None:
    """Check tokens and log-probabilities, bit for bit."""
    assert client.output == expected.client.output
    assert client.logprobs == expected.client.logprobs
    assert client.prompt_logprobs == expected.client.prompt_logprobs
