"""From what the user calls a model to folders on this machine, and to the name that requests use.

Knows `demo` and explains a mistyped command; folders and hub ids are `mambad.engine.hub`'s. Reads nothing
inside the folders: whether they hold a model is found out by the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mambad.engine.errors import ConfigError, LoadError
from mambad.engine.hub import resolve_model
from mambad.server.config import ServerConfig
from mambad.server.config_sources import nearest

DEMO = "demo"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model was found.

    Attributes:
        folder: configuration and weights.
        tokenizer_folder: `tokenizer.json`; often the same.
        name: what requests call the model when no name was configured.
    """

    folder: Path
    tokenizer_folder: Path
    name: str


def find_model(config: ServerConfig, commands: Sequence[str] = ()) -> ModelSource:
    """Find the configured model and tokenizer, fetching hub ids.

    Args:
        config: `model`, `tokenizer`, `revision` and `download_dir` are used.
        commands: names of sub-commands, to explain a mistyped one.

    Raises:
        ConfigError: the word can't be a model, or there is no such tokenizer folder.
        LoadError: there is no such folder, and the hub has no such model or can't be reached.
    """
    if config.model == DEMO:
        folder, name = _demo_folder(), DEMO
    else:
        folder = _find(config, commands)
        is_here = Path(config.model).expanduser().is_dir()
        name = folder.resolve().name if is_here else config.model
    tokenizer_folder = folder if config.tokenizer is None else _tokenizer_folder(config.tokenizer)
    return ModelSource(folder, tokenizer_folder, name)


def _demo_folder() -> Path:
    # Beside this package in a clone and in an installation. importlib.resources refuses a namespace package
    # of an editable installation.
    folder = Path(__file__).resolve().parent.parent / "configs" / DEMO
    if not (folder / "config.json").is_file():
        raise LoadError("the demo model is missing from this installation; name a model: mambad serve FOLDER")
    return folder


def _find(config: ServerConfig, commands: Sequence[str]) -> Path:
    name = config.model
    if "/" not in name and not name.startswith((".", "~")) and not Path(name).exists():
        hint = nearest(name, (*commands, DEMO))
        known = f"a command ({', '.join(commands)}), " if commands else ""
        raise ConfigError(
            f"{name!r} is neither {known}a folder here, a hub id (owner/name), nor `{DEMO}`{hint}"
        )
    return resolve_model(name, revision=config.revision, download_dir=config.download_dir)


def _tokenizer_folder(name: str) -> Path:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--tokenizer: {name} is no folder; give the one that holds tokenizer.json")
    return folder
