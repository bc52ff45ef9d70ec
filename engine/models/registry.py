"""Which family a checkpoint belongs to, and the families there are.

Owns the table of families and the detection from config.json. A new family is one adapter file and one
entry here. No torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mambad.engine.errors import LoadError
from mambad.engine.models import granite_hybrid, mamba, mamba2
from mambad.engine.models.config_values import ConfigValues
from mambad.engine.models.original import is_original_layout, to_hugging_face
from mambad.engine.models.rules import Rule
from mambad.engine.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Family:
    """One adapter; its key in FAMILIES is the `model_type` of Hugging Face.

    Attributes:
        architecture: class name in `architectures`.
        build: configuration to spec.
        rules: where the spec's tensors stand in a checkpoint.
    """

    architecture: str
    build: Callable[[ConfigValues], ModelSpec]
    rules: Callable[[ModelSpec], list[Rule]]


FAMILIES: Mapping[str, Family] = {
    "mamba": Family("MambaForCausalLM", mamba.build, mamba.rules),
    "mamba2": Family("Mamba2ForCausalLM", mamba2.build, mamba.rules),
    "granitemoehybrid": Family("GraniteMoeHybridForCausalLM", granite_hybrid.build, granite_hybrid.rules),
}


def build_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Return the spec of the model that config.json describes.

    `real_vocab_size` and `eos_token_ids` are what the configuration alone tells; see `vocabulary.py`.

    Raises:
        LoadError: the architecture is not supported, or a value is missing or not supported.
    """
    values = ConfigValues(config)
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise LoadError(f"quantised checkpoints ({method}) can't be served; use the unquantised weights")
    if not is_original_layout(values):
        return FAMILIES[detect_family(values)].build(values)
    translated = to_hugging_face(values)
    spec = FAMILIES[translated["model_type"]].build(ConfigValues(translated))
    eos = translated["eos_token_id"]
    return replace(
        spec,
        real_vocab_size=values.integer("vocab_size"),
        eos_token_ids=() if eos is None else (eos,),
    )


def model_rules(spec: ModelSpec) -> list[Rule]:
    """Return the rules of the spec's family."""
    return FAMILIES[spec.family].rules(spec)


def detect_family(config: ConfigValues) -> str:
    """Return the key of the family that a configuration in Hugging Face's words names.

    `model_type` decides, because the other keys follow it; `architectures` is often absent, but where it
    is there, one of its entries must be a supported class: a classifier is no language model.

    Raises:
        LoadError: nothing is named, or nothing supported.
    """
    model_type = config.raw("model_type")
    architectures = config.raw("architectures") or []
    by_class = {family.architecture: name for name, family in FAMILIES.items()}
    named = [by_class[name] for name in architectures if name in by_class]
    if architectures and not named:
        raise LoadError(f"architecture {', '.join(map(str, architectures))} is not supported; {_supported()}")
    if model_type in FAMILIES:
        return str(model_type)
    if named:
        return named[0]
    if model_type is None:
        raise LoadError(f"config.json names neither architectures nor model_type; {_supported()}")
    raise LoadError(f"model_type {model_type!r} is not supported; {_supported()}")


def _supported() -> str:
    classes = ", ".join(family.architecture for family in FAMILIES.values())
    return f"supported: {classes}, and original state-spaces Mamba and Mamba-2 checkpoints"
