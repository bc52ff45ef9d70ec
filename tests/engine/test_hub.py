"""What the user calls a model, resolved to a folder: local folders, the hub's cache, and no network."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from mambad.engine import hub
from mambad.engine.errors import LoadError
from mambad.engine.hub import resolve_model

COMMIT = "0" * 40


class FakeApi:
    """Stands for HfApi: raises, or lists files."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __call__(self) -> "FakeApi":
        return self

    def model_info(self, model: str, revision: str | None) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        siblings = [SimpleNamespace(rfilename=name) for name in self._answer]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)


def put_in_cache(cache: Path, owner: str, name: str) -> Path:
    """Lay out a downloaded repository as huggingface_hub does."""
    repository = cache / f"models--{owner}--{name}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


def test_without_network_a_cached_model_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HfApi", FakeApi(OSError("no route")))
    snapshot = put_in_cache(tmp_path, "owner", "name")
    assert resolve_model("owner/name", download_dir=str(tmp_path)) == snapshot


def test_without_network_and_cache_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HfApi", FakeApi(OSError("no route\nto host")))
    with pytest.raises(
        LoadError, match=r"owner/name .* can't be fetched from the hub \(no route\)"
    ) as caught:
        resolve_model("owner/name", download_dir=str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RepositoryNotFoundError, "neither a folder here nor a model on the hub"),
        (RevisionNotFoundError, "owner/name has no revision 'v9' on the hub"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_line(
    error: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = SimpleNamespace(headers={}, request=None)
    monkeypatch.setattr(hub, "HfApi", FakeApi(error("404\nmore", response=response)))
    with pytest.raises(LoadError, match=message) as caught:
        resolve_model("owner/name", revision="v9")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "weights"),
    [
        (["model-1.safetensors", "consolidated.safetensors", "pytorch_model.bin"], "model*.safetensors"),
        (["consolidated.safetensors", "pytorch_model.bin"], "consolidated.safetensors"),
        (["pytorch_model.bin", "training_args.bin"], "pytorch_model*.bin"),
    ],
)
def test_one_form_of_the_weights_is_fetched(
    files: list[str], weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def download(model: str, **options: Any) -> str:
        calls.append(options)
        return str(tmp_path)

    monkeypatch.setattr(hub, "HfApi", FakeApi(["config.json", *files]))
    monkeypatch.setattr(hub, "snapshot_download", download)
    assert resolve_model("owner/name", revision="main", download_dir="/cache") == tmp_path
    assert calls[0]["revision"] == COMMIT
    assert calls[0]["cache_dir"] == "/cache"
    assert [p for p in calls[0]["allow_patterns"] if "safetensors" in p or p.endswith("bin")] == [weights]


@pytest.mark.parametrize("model", ["./nothing", "/nothing", "a/b/c", "has space"])
def test_what_can_be_no_hub_id_is_reported_as_missing(model: str) -> None:
    with pytest.raises(LoadError, match="does not exist: expected a model folder or a hub id"):
        resolve_model(model)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.touch()
    with pytest.raises(LoadError, match="is a file: expected a model folder"):
        resolve_model(str(path))
