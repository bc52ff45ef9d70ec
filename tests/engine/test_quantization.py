"""Models with quantized layers: which layers those are, what they weigh, and that equality holds for them."""

import functools

import pytest
import torch
from test_equality import KERNELS, assert_same, prompt_of, run_staggered
from toy_driver import Driver, whole
from toy_equality import EqualityEngine, Record, load_toy
from toy_models import toy_model

from mambad.engine.config import EngineConfig
from mambad.engine.errors import ConfigError
from mambad.engine.loader import inspect_model, load_model
from mambad.engine.quantization import plan_lines, weight_format
from mambad.kernels.ops import PackedLinear
from mambad.kernels.quantization import INT4, INT8, WeightFormat
from mambad.kernels.reference.ops import ReferenceOps

FAMILIES = ["mamba", "mamba2-groups", "granite"]
QUANTIZATIONS = ["int8", "int4"]


class RecordingOps(ReferenceOps):
    """The reference, with a list of what was packed how."""

    def __init__(self) -> None:
        super().__init__("tests")
        self.packed: list[tuple[PackedLinear, WeightFormat | None, torch.dtype]] = []

    def pack_linear(  # type: ignore[override]
        self, weight: torch.Tensor, bias: torch.Tensor | None, weight_format: WeightFormat | None = None
    ) -> PackedLinear:
        packed = ReferenceOps.pack_linear(weight, bias, weight_format)
        self.packed.append((packed, weight_format, weight.dtype))
        return packed


@pytest.mark.parametrize(
    ("quantization", "layer", "expected"),
    [
        ("none", "head", None),
        ("int8", "head", INT8),
        ("int4", "head", INT8),
        ("int8", "layers.0.mixer.in_proj", INT8),
        ("int4", "layers.0.mixer.in_proj", INT4),
        ("int4", "layers.12.mlp.down", INT4),
        ("int8", "layers.0.mixer.x_proj", INT8),
        ("int4", "layers.0.mixer.x_proj", INT8),
        ("int4", "layers.0.mixer.dt_proj", INT8),
    ],
)
def test_layer_has_its_format(quantization: str, layer: str, expected: WeightFormat | None) -> None:
    assert weight_format(quantization, layer) == expected


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("family", [*FAMILIES, "mamba2-bfloat16"])
def test_report_counts_the_bytes_that_integers_take(family: str, quantization: str) -> None:
    folder = toy_model(family).folder
    ops = RecordingOps()
    load_model(folder, ops=ops, quantization=quantization)
    plain, report = inspect_model(folder), inspect_model(folder, quantization=quantization)
    saved = 0
    for packed, form, dtype in ops.packed:
        if form is not None:
            saved += packed.num_in * packed.num_out * dtype.itemsize
            saved -= form.num_bytes(packed.num_out, packed.num_in)
    if plain.spec.tied:  # a rounded head needs the embedding beside it
        saved -= plain.spec.vocab_size * plain.spec.hidden_size * plain.weight_dtype.itemsize
    assert plain.weight_bytes - report.weight_bytes == saved > 0
    assert report.weight_dtype is plain.weight_dtype
    assert report.quantization == quantization


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_stay_near_those_of_the_whole_numbers(family: str, quantization: str) -> None:
    toy = toy_model(family)
    driver = Driver(load_toy(family, KERNELS[0], quantization=quantization))
    logits = driver.run_in_pieces(toy.token_ids[0], [whole(len(toy.token_ids[0]))])
    error = (logits - toy.logits[0]).norm() / toy.logits[0].norm()
    # A random model of width 32 gets the noise of every layer undamped: 8 bits about 1 %, 4 about 12 %.
    assert 1e-4 < error < (0.05 if quantization == "int8" else 0.4)


@functools.cache
def alone(family: str, kernels: str, quantization: str, index: int, length: int) -> Record:
    decoder = load_toy(family, kernels, quantization=quantization)
    engine = EqualityEngine(decoder, num_slots=1, budget=64)
    engine.submit("x", prompt_of(index, length), seed=index, max_tokens=6)
    return engine.run()["x"]


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_in_company_equals_alone(family: str, kernels: str, quantization: str) -> None:
    asked = [(i, length, 6) for i, length in enumerate([1, 3, 64, 65, 130, 190])]
    threads = 2 if kernels == "cpu" else 1
    decoder = load_toy(family, kernels, threads, quantization)
    engine = EqualityEngine(decoder, num_slots=5, budget=200, runs_ahead=True)
    run_staggered(engine, asked)
    for index, length, _ in asked:
        assert_same(engine.records[f"r{index}"], alone(family, kernels, quantization, index, length))


def test_plan_says_what_became_of_the_weights() -> None:
    assert plan_lines("none") == ()
    assert plan_lines("int8") == ("integers  linear weights int8 in groups of 64 (--quantization)",)
    (line,) = plan_lines("int4")
    assert "int4 in groups of 32, the head int8 in groups of 64" in line


def test_other_quantizations_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--quantization is 'fp8', it must be one of none, int8, int4"):
        EngineConfig(model="x", quantization="fp8")
