"""From a model folder to a decoder: what is in it, whether it can be served, and loading it.

Owns the dtype policy, the report that `mambad check` prints, and the three ways in: `inspect_model` reads
headers only, `load_inspected` loads what a report describes, `load_model` does both. Files are the
checkpoint's business, names and shapes the rules'.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from mambad.engine.checkpoint import Checkpoint, open_checkpoint
from mambad.engine.errors import ConfigError, LoadError
from mambad.engine.models.decoder import Decoder
from mambad.engine.models.registry import build_spec, model_rules
from mambad.engine.models.rules import Rule, match_rules
from mambad.engine.models.spec import ModelSpec
from mambad.engine.models.vocabulary import complete_spec, read_json
from mambad.engine.quantization import HEAD, weight_format
from mambad.engine.weights import (
    WEIGHT_ROLES,
    CheckpointSource,
    Progress,
    RandomSource,
    TensorSource,
    Weights,
)
from mambad.kernels.ops import Ops

LoadFormat: TypeAlias = Literal["auto", "dummy"]
_LOADABLE_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})
_FLOAT16_REASON = "float16 has too little range for recurrent states and no fast path on a CPU"


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What a model folder holds and how it would be loaded.

    Attributes:
        folder: the model folder.
        spec: the model.
        load_format: auto, or dummy for random weights.
        weight_dtype: dtype of embeddings and of linear weights that are not quantized; everything else is
            float32.
        dtype_reason: why that dtype.
        quantization: none, int8 or int4: what most linear weights become.
        file_names: the weight files; empty for dummy weights.
        checkpoint_dtypes: how many tensors of each dtype the files hold.
        num_parameters: parameters of the model, shared ones once.
        weight_bytes: bytes in memory after loading, packing overhead not counted.
        notes: lines worth telling the user.
    """

    folder: Path
    spec: ModelSpec
    load_format: LoadFormat
    weight_dtype: torch.dtype
    dtype_reason: str
    quantization: str
    file_names: tuple[str, ...]
    checkpoint_dtypes: Mapping[str, int]
    num_parameters: int
    weight_bytes: int
    notes: tuple[str, ...]


def load_model(
    folder: Path,
    *,
    ops: Ops,
    dtype: str = "auto",
    load_format: LoadFormat = "auto",
    quantization: str = "none",
    seed: int = 0,
    progress: Progress | None = None,
) -> Decoder:
    """Load a model folder; see `inspect_model` and `load_inspected` for arguments and errors."""
    report = inspect_model(folder, dtype=dtype, load_format=load_format, quantization=quantization)
    return load_inspected(report, ops=ops, seed=seed, progress=progress)


def inspect_model(
    folder: Path,
    *,
    dtype: str = "auto",
    load_format: LoadFormat = "auto",
    quantization: str = "none",
    tokenizer_folder: Path | None = None,
) -> ModelReport:
    """Verify that a model folder can be served, reading headers but no weights.

    Args:
        folder: a folder in Hugging Face layout, or an original state-spaces checkpoint.
        dtype: auto, float32 or bfloat16. auto is bfloat16 for a bfloat16 checkpoint, else float32.
        load_format: dummy needs config.json only.
        quantization: none, int8 or int4.
        tokenizer_folder: where the tokenizer is, if not in the model folder.

    Raises:
        LoadError: the folder holds no model, one that is not supported, or weights that don't fit it.
        ConfigError: the dtype can't be used.
    """
    config = read_config(folder)
    spec = complete_spec(build_spec(config), config, folder, tokenizer_folder)
    rules = model_rules(spec)
    checkpoint = None if load_format == "dummy" else open_checkpoint(folder)
    stored = [_config_dtype(config)] if checkpoint is None else _stored_dtypes(rules, checkpoint)
    weight_dtype, reason = choose_dtype(dtype, stored)
    headers = {} if checkpoint is None else checkpoint.headers
    return ModelReport(
        folder=folder,
        spec=spec,
        load_format=load_format,
        weight_dtype=weight_dtype,
        dtype_reason=reason,
        quantization=quantization,
        file_names=() if checkpoint is None else checkpoint.file_names,
        checkpoint_dtypes=Counter(header.dtype for header in headers.values()),
        num_parameters=sum(math.prod(rule.shape) for rule in rules if rule.role != "spare"),
        weight_bytes=_count_weight_bytes(spec, rules, weight_dtype.itemsize, quantization),
        notes=_collect_notes(spec, load_format),
    )


def load_inspected(
    report: ModelReport,
    *,
    ops: Ops,
    seed: int = 0,
    progress: Progress | None = None,
    on_layer: Callable[[], None] | None = None,
) -> Decoder:
    """Load the model that a report describes, tensor by tensor.

    Args:
        report: from `inspect_model`.
        ops: the kernels that pack the weights and will run the model.
        seed: of the random weights of load_format dummy.
        progress: called on this thread after each tensor with bytes done, bytes in all, and its name.
        on_layer: called after every mixer and mlp of every pass.

    Raises:
        LoadError: the files have changed or can't be read any more.
    """
    rules = model_rules(report.spec)
    source: TensorSource = RandomSource(seed)
    if report.load_format != "dummy":
        checkpoint = open_checkpoint(report.folder)
        source = CheckpointSource(checkpoint, _match(rules, checkpoint))
    weights = Weights(rules, source, report.weight_dtype, progress, report.quantization)
    return Decoder(report.spec, weights, ops, on_layer)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the folder's config.json.

    Raises:
        LoadError: there is no such folder or file, or it is damaged.
    """
    if not folder.is_dir():
        raise LoadError(f"{folder} is not a folder: expected a model folder in Hugging Face layout")
    config = read_json(folder / "config.json")
    if config is None:
        raise LoadError(f"{folder} holds no model: config.json is missing")
    return config


def choose_dtype(requested: str, weight_dtypes: list[str]) -> tuple[torch.dtype, str]:
    """Return the dtype of linear weights and embeddings on the CPU, and why.

    Args:
        requested: value of --dtype.
        weight_dtypes: dtypes of these tensors in the checkpoint.

    Raises:
        ConfigError: the requested dtype is unknown or can't be used.
    """
    if requested == "bfloat16":
        return torch.bfloat16, "--dtype bfloat16"
    if requested == "float32":
        return torch.float32, "--dtype float32"
    if requested in ("float16", "half"):
        raise ConfigError(f"--dtype {requested} can't be used: {_FLOAT16_REASON}; use float32 or bfloat16")
    if requested != "auto":
        raise ConfigError(f"--dtype {requested!r} is unknown: use auto, float32 or bfloat16")
    present = sorted(set(weight_dtypes))
    if present == ["bfloat16"]:
        return torch.bfloat16, "auto: the checkpoint is bfloat16"
    reason = f"auto: the checkpoint is {' and '.join(present)}"
    if "float16" in present:
        reason += f", and {_FLOAT16_REASON}"
    return torch.float32, reason


def _match(rules: list[Rule], checkpoint: Checkpoint) -> dict[str, str]:
    names = match_rules(rules, {name: header.shape for name, header in checkpoint.headers.items()})
    for name in names.values():
        dtype = checkpoint.headers[name].dtype
        if dtype not in _LOADABLE_DTYPES:
            raise LoadError(
                f"tensor {name} has dtype {dtype}: only {', '.join(sorted(_LOADABLE_DTYPES))} can be loaded"
            )
    return names


def _stored_dtypes(rules: list[Rule], checkpoint: Checkpoint) -> list[str]:
    """Return the dtypes of linear weights and embeddings in a checkpoint that fits the rules."""
    names = _match(rules, checkpoint)
    return [checkpoint.headers[names[rule.target]].dtype for rule in rules if rule.role in WEIGHT_ROLES]


def _config_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype that the configuration names, under its old or new key."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")


def _count_weight_bytes(spec: ModelSpec, rules: list[Rule], item_bytes: int, quantization: str) -> int:
    """Return the bytes of all tensors; a tied embedding is held beside the head only if that is rounded."""
    head_shape = (spec.real_vocab_size, spec.hidden_size)
    total = _linear_bytes(HEAD, head_shape, item_bytes, quantization)
    is_shared = spec.tied and weight_format(quantization, HEAD) is None
    for rule in rules:
        if is_shared and rule.target == "embedding":
            continue
        if rule.role == "linear" and rule.target != HEAD:
            total += _linear_bytes(rule.target, rule.shape, item_bytes, quantization)
        elif rule.role not in ("spare", "linear"):
            total += math.prod(rule.shape) * (item_bytes if rule.role in WEIGHT_ROLES else 4)
    return total


def _linear_bytes(layer: str, shape: tuple[int, ...], item_bytes: int, quantization: str) -> int:
    integers = weight_format(quantization, layer.removesuffix(".weight"))
    return math.prod(shape) * item_bytes if integers is None else integers.num_bytes(*shape)


def _collect_notes(spec: ModelSpec, load_format: LoadFormat) -> tuple[str, ...]:
    notes = []
    if load_format == "dummy":
        notes.append("weights are random (--load-format dummy)")
    if spec.real_vocab_size < spec.vocab_size:
        padding = spec.vocab_size - spec.real_vocab_size
        notes.append(f"{padding} of {spec.vocab_size} embedding rows are padding and get no logits")
    if not spec.eos_token_ids:
        notes.append("no end-of-sequence token is known: answers end at their length limit")
    return tuple(notes)
