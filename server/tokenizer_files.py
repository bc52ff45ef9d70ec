"""Reads a tokenizer from a model folder: `tokenizer.json` and the names of its special tokens.

Reads files only; a hub id has become a folder before this is called.
"""

from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from mambad.engine.errors import LoadError
from mambad.server.tokenizer import TextTokenizer

SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json")


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Return the tokenizer of a folder in Hugging Face layout.

    Raises:
        LoadError: no `tokenizer.json`, or one that can't be read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise LoadError(
            f"{folder} has no tokenizer.json; save one with Transformers' "
            "AutoTokenizer(...).save_pretrained(folder), or name another folder with --tokenizer"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise LoadError(f"{path} can't be read: {error}") from error
    names = _special_tokens(folder)
    return TextTokenizer(
        tokenizer,
        bos_token=names.get("bos_token"),
        eos_token=names.get("eos_token"),
        pad_token=names.get("pad_token"),
    )


def _special_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of the special tokens; the first file that names one decides."""
    found: dict[str, str] = {}
    for name in SIDE_FILES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            content = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError as error:
            raise LoadError(f"{path} is no JSON: {error}") from error
        for key in ("bos_token", "eos_token", "pad_token"):
            text = _text(content.get(key)) if isinstance(content, dict) else None
            if text is not None:
                found.setdefault(key, text)
    return found


def _text(value: Any) -> str | None:
    """Return the text of a special token, which is written as a string or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
