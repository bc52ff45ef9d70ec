"""The captured decode pass: the bits of the decoder called op by op, whatever the rows, and its failures."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toy_driver import Driver, Span
from toy_equality import EqualityEngine
from toy_models import toy_model, toy_names
from toy_runner import toy_spec

from mambad.engine.batch import Batch, DecodeRow
from mambad.engine.build import build_engine
from mambad.engine.captured_decoder import CapturedDecoder, capture_decoder
from mambad.engine.config import EngineConfig
from mambad.engine.input_buffers import InputBuffers
from mambad.engine.loader import load_model
from mambad.engine.model_inputs import DecodeInputs
from mambad.engine.models.decoder import Decoder
from mambad.engine.models.granite_hybrid import rules
from mambad.engine.op_profile import OpProfile
from mambad.engine.progress import ProgressCounter
from mambad.engine.weights import RandomSource, Weights
from mambad.kernels.cpu.ops import CpuOps, load_cpu_ops
from mambad.kernels.reference.ops import ReferenceOps

MAX_ROWS = 9
STEPS: Sequence[Sequence[tuple[int, int]]] = (
    ((1, 40), (2, 20)),
    ((2, 21),),
    ((4, 3), (2, 22), (1, 41), (3, 17)),
    ((1, 42), (2, 23), (4, 4)),
)
"""(slot, position) of the rows of decode steps that follow each other."""


@pytest.fixture(params=[1, 2])
def ops(request: pytest.FixtureRequest) -> CpuOps:
    loaded = load_cpu_ops(request.param)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    return loaded


class Pair:
    """One decoder with two sets of pools, that of `eager` and that of `captured`."""

    def __init__(self, decoder: Decoder, progress_address: int | None = None) -> None:
        self.eager, self.other = Driver(decoder), Driver(decoder)
        captured = capture_decoder(decoder, self.other.pools, MAX_ROWS, progress_address)
        assert captured is not None
        self.captured: CapturedDecoder = captured
        self.buffers = InputBuffers([1, 2, 4, MAX_ROWS])

    def inputs(self, rows: Sequence[tuple[int, int, int]]) -> DecodeInputs:
        decodes = tuple(DecodeRow(0, slot, token_id, position, None) for slot, token_id, position in rows)
        inputs = self.buffers.fill(Batch(1, decodes=decodes)).decode
        assert inputs is not None
        return inputs

    def decode(self, rows: Sequence[tuple[int, int, int]]) -> Tensor:
        return self.captured.logits(self.captured.decode(self.inputs(rows), self.other.pools))[: len(rows)]


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()


@pytest.mark.parametrize("name", toy_names())
def test_captured_steps_have_the_bits_of_eager_ones(name: str, ops: CpuOps) -> None:
    toy = toy_model(name)
    pair = Pair(load_model(toy.folder, ops=ops))
    spans = [
        Span(slot, toy.token_ids[slot % 2], 0, [length])
        for slot, length in ((1, 40), (2, 20), (3, 17), (4, 3))
    ]
    pair.eager.prefill(*spans)
    pair.other.prefill(*spans)
    for step in STEPS:
        rows = [(slot, int(toy.token_ids[slot % 2, position]), position) for slot, position in step]
        assert same_bytes(pair.eager.decode(*rows), pair.decode(rows))
        for slot in range(1, 5):
            assert pair.eager.pools.states.checksum(slot) == pair.other.pools.states.checksum(slot)


def toy_pair(ops: CpuOps, progress_address: int | None = None) -> Pair:
    spec = toy_spec()
    weights = Weights(rules(spec), RandomSource(3), torch.float32, None)
    return Pair(Decoder(spec, weights, ops), progress_address)


def test_logits_of_other_rows_than_the_decoded_ones(ops: CpuOps) -> None:
    pair = toy_pair(ops)
    for num_rows in (5, MAX_ROWS, MAX_ROWS + 1):
        hidden = torch.randn(num_rows, pair.eager.decoder.spec.hidden_size)
        assert same_bytes(pair.captured.logits(hidden), pair.eager.decoder.logits(hidden))


def test_padding_rows_touch_no_slot(ops: CpuOps) -> None:
    pair = toy_pair(ops)
    before = [pair.other.pools.states.checksum(slot) for slot in range(1, 5)]
    pair.captured.decode(pair.inputs([(0, 0, 0)] * 3), pair.other.pools)
    assert [pair.other.pools.states.checksum(slot) for slot in range(1, 5)] == before


def test_every_call_counts_as_progress(ops: CpuOps, tmp_path: Path) -> None:
    counter = ProgressCounter(tmp_path / "progress")
    watching = ProgressCounter(tmp_path / "progress")
    pair = toy_pair(ops, counter.address)
    assert watching.value == 0
    pair.decode([(0, 0, 0)])
    assert watching.value == pair.captured.num_calls
    counter.bump()
    assert watching.value == pair.captured.num_calls + 1


def test_slot_that_does_not_exist_is_an_error_and_the_next_step_is_right(ops: CpuOps) -> None:
    pair = toy_pair(ops)
    span = Span(1, torch.arange(5), 0, [5])
    pair.eager.prefill(span)
    pair.other.prefill(span)
    with pytest.raises(ValueError, match="out of range"):
        pair.decode([(5, 1, 0), (0, 0, 0)])
    assert same_bytes(pair.decode([(1, 7, 5)]), pair.eager.decode((1, 7, 5)))


def test_activations_do_not_grow_with_the_layers(ops: CpuOps) -> None:
    spec = toy_spec()
    sizes = set()
    for num_repeats in (1, 4):
        longer = type(spec)(**{**_fields(spec), "layers": spec.layers * num_repeats})
        decoder = Decoder(longer, Weights(rules(longer), RandomSource(3), torch.float32, None), ops)
        sizes.add(Pair(decoder).captured.num_bytes)
    assert len(sizes) == 1


def _fields(spec: object) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}  # type: ignore[attr-defined]


def test_reference_kernels_are_not_captured() -> None:
    spec = toy_spec()
    weights = Weights(rules(spec), RandomSource(3), torch.float32, None)
    decoder = Decoder(spec, weights, ReferenceOps("tests"))
    assert capture_decoder(decoder, Driver(decoder).pools, MAX_ROWS) is None


@pytest.mark.parametrize("family", ["mamba", "granite"])
def test_requests_get_the_same_bits_captured_and_eager(family: str, ops: CpuOps) -> None:
    """Rows that prefill, decode, end and go on without a token wanted, in steps that mix them."""
    records = []
    for is_eager in (False, True):
        decoder = load_model(toy_model(family).folder, ops=ops)
        engine = EqualityEngine(decoder, num_slots=3, budget=64, runs_ahead=True, is_eager=is_eager)
        for place, length in enumerate((70, 5, 130, 9)):
            prompt = [(place + i * i) % 50 for i in range(length)]
            engine.submit(f"r{place}", prompt, seed=place, max_tokens=6 + place, temperature=float(place % 2))
        records.append(engine.run())
    assert records[0] == records[1]


def test_profile_of_a_captured_step_names_the_ops_and_bytes_of_an_eager_one(ops: CpuOps) -> None:
    profile = OpProfile()
    spec = toy_spec()
    watched = profile.wrap(ops)
    pair = Pair(Decoder(spec, Weights(rules(spec), RandomSource(3), torch.float32, None), watched))
    rows = [(1, 7, 5), (2, 3, 9), (3, 1, 0)]
    found = []
    for decode in (lambda: pair.eager.decode(*rows), lambda: pair.decode(rows)):
        profile.reset()
        decode()
        assert all(record.seconds > 0 for record in profile.records.values())
        found.append({name: (record.calls, record.num_bytes) for name, record in profile.records.items()})
    assert found[0] == found[1]
    assert sum(calls for calls, _ in found[1].values()) == pair.captured.num_calls


@pytest.mark.parametrize(("is_eager", "expected"), [(False, "captured ("), (True, "eager (--enforce-eager)")])
def test_engine_captures_unless_told_not_to_and_says_so(
    is_eager: bool, expected: str, ops: CpuOps, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = str(toy_model("mamba").folder)
    config = EngineConfig(
        model=folder, enforce_eager=is_eager, threads=ops.num_threads, kv_cache_memory_bytes=1 << 22
    )
    engine, _ = build_engine(config)
    engine.close()
    (line,) = (record.message for record in caplog.records if record.message.startswith("decode: "))
    assert line.removeprefix("decode: ").startswith(expected)
