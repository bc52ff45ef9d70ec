"""What the files beside config.json tell about the vocabulary: how many tokens exist, which ones end.

Embeddings are padded to round sizes, so a model may have rows for tokens that do not exist; those must
never be sampled. Reads tokenizer.json, generation_config.json and tokenizer_config.json; encodes nothing.
No torch.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mambad.engine.errors import LoadError
from mambad.engine.models.spec import ModelSpec


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object from a file, None when there is no such file.

    Raises:
        LoadError: the file can't be read or holds no JSON object.
    """
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise LoadError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise LoadError(f"{path} holds no JSON object")
    return values


def complete_spec(
    spec: ModelSpec, config: Mapping[str, Any], folder: Path, tokenizer_folder: Path | None = None
) -> ModelSpec:
    """Return the spec with what the other files tell about vocabulary and end of sequence.

    End-of-sequence ids are those of config.json and generation_config.json together; tokenizer_config.json
    is asked when neither names any, and what the family knows (`spec.eos_token_ids`) when nothing does.

    Args:
        spec: what config.json alone tells.
        config: config.json.
        folder: the model folder, with generation_config.json.
        tokenizer_folder: where the tokenizer's files are, if not there too.

    Raises:
        LoadError: one of the files is damaged.
    """
    tokenizer_folder = tokenizer_folder or folder
    ids_by_token = _read_tokens(tokenizer_folder / "tokenizer.json")
    real_vocab_size = spec.real_vocab_size
    if ids_by_token:
        real_vocab_size = min(max(ids_by_token.values()) + 1, spec.vocab_size)
    generation_config = read_json(folder / "generation_config.json") or {}
    eos_ids = _read_ids(config, "config.json") | _read_ids(generation_config, "generation_config.json")
    if not eos_ids:
        tokenizer_config = read_json(tokenizer_folder / "tokenizer_config.json") or {}
        eos_ids = _find_eos(tokenizer_config, ids_by_token) or set(spec.eos_token_ids)
    existing = sorted(token_id for token_id in eos_ids if 0 <= token_id < real_vocab_size)
    return replace(spec, real_vocab_size=real_vocab_size, eos_token_ids=tuple(existing))


def _read_tokens(path: Path) -> dict[str, int]:
    """Return token to id as tokenizer.json has it, added tokens included; empty without the file."""
    values = read_json(path)
    if values is None:
        return {}
    try:
        vocab = values["model"]["vocab"]
        if isinstance(vocab, list):  # unigram models: [token, score] in the order of ids
            vocab = {entry[0]: token_id for token_id, entry in enumerate(vocab)}
        added = {token["content"]: token["id"] for token in values.get("added_tokens") or []}
        ids = {str(token): int(token_id) for token, token_id in (vocab | added).items()}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise LoadError(f"{path} does not describe a tokenizer: {error!r}") from error
    return ids


def _read_ids(values: Mapping[str, Any], file_name: str) -> set[int]:
    found = values.get("eos_token_id")
    listed = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in listed):
        raise LoadError(f"{file_name}: eos_token_id is {found!r}, expected an id or a list of ids")
    return set(listed)


def _find_eos(tokenizer_config: Mapping[str, Any], ids_by_token: Mapping[str, int]) -> set[int]:
    token = tokenizer_config.get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    token_id = ids_by_token.get(content) if isinstance(content, str) else None
    return set() if token_id is None else {token_id}
