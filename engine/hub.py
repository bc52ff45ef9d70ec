"""From what the user calls a model to a folder on this machine, through huggingface_hub where needed.

Owns the decision whether a name is a folder or a hub id, which files of a repository are fetched, and one
helpful line for everything that can go wrong. It reads no model.
"""

import fnmatch
import re
from itertools import islice
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mambad.engine.errors import LoadError

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_CONFIG_PATTERNS = ("*.json", "*.jinja", "*.txt", "tokenizer.model*")
_WEIGHT_PATTERNS = ("model*.safetensors", "consolidated.safetensors", "pytorch_model*.bin")


def resolve_model(model: str, *, revision: str | None = None, download_dir: str | None = None) -> Path:
    """Return the folder of a model, fetching it from the hub if it is no folder here.

    A model that is in the cache is used as it is when the hub can't be reached.

    Args:
        model: a folder, or a hub id such as `state-spaces/mamba-130m-hf`.
        revision: branch, tag or commit on the hub; the default branch if None.
        download_dir: cache folder instead of huggingface_hub's own.

    Raises:
        LoadError: there is no such folder, or it can't be fetched.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise LoadError(f"{model} is a file: expected a model folder or a hub id")
    if not _HUB_ID.fullmatch(model) or model.startswith("."):
        raise LoadError(f"{model} does not exist: expected a model folder or a hub id such as owner/name")
    where = f"{model} (revision {revision})" if revision else model
    try:
        return _fetch(model, revision, download_dir)
    except GatedRepoError as error:
        reason = f"{where} asks for access rights on the hub: accept its terms and set HF_TOKEN"
        raise LoadError(reason) from error
    except RevisionNotFoundError as error:
        raise LoadError(f"{model} has no revision {revision!r} on the hub") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        reason = f"{model} is neither a folder here nor a model on the hub (or it is private: set HF_TOKEN)"
        raise LoadError(reason) from error
    # A dead network raises whatever the HTTP library below this version of huggingface_hub raises.
    except Exception as error:
        cached = _find_cached(model, revision, download_dir)
        if cached is None:
            raise LoadError(
                f"{where} is no folder here, is not in the cache, and can't be fetched from the hub "
                f"({_first_line(error)}): name a model folder, or fetch it where there is a network"
            ) from error
        return cached


def _fetch(model: str, revision: str | None, download_dir: str | None) -> Path:
    info = HfApi().model_info(model, revision=revision)
    names = [sibling.rfilename for sibling in info.siblings or []]
    patterns = _choose_patterns(names)
    return Path(snapshot_download(model, revision=info.sha, cache_dir=download_dir, allow_patterns=patterns))


def _choose_patterns(names: list[str]) -> list[str]:
    """Return which files to fetch: the texts, and one form of the weights out of those that are offered."""
    weights = (pattern for pattern in _WEIGHT_PATTERNS if fnmatch.filter(names, pattern))
    return [*_CONFIG_PATTERNS, *islice(weights, 1)]


def _find_cached(model: str, revision: str | None, download_dir: str | None) -> Path | None:
    try:
        path = snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    return Path(path)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
