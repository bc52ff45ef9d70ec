"""What a user sees while the daemon starts."""

import asyncio
import json
import shlex
import time
from typing import Any

import pytest

from mambad.engine.async_engine import EngineStatus
from mambad.server import cli_output
from mambad.server.cli_output import announce, first_command, log_configuration, show_progress, warn_if_open
from mambad.server.config import ServerConfig
from mambad.server.config_sources import load_config
from mambad.server.settings import AppSettings

URL = "http://127.0.0.1:8000"
SETTINGS = AppSettings(served_model_names=("it's mine", "alias"))


class Loading:
    """An engine that is loading until told otherwise."""

    def __init__(self) -> None:
        self.status = EngineStatus("loading", "weights of layer 3", time.time(), 0.4)

    def become_ready(self) -> None:
        self.status = EngineStatus("ready", "", time.time())


def watch(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `show_progress` watch a load of a few polls."""
    monkeypatch.setattr(cli_output, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    engine: Any = Loading()

    async def run() -> None:
        task = asyncio.create_task(show_progress(engine))
        await asyncio.sleep(0.1)
        assert not task.done()
        engine.become_ready()
        await asyncio.wait_for(task, 5)

    asyncio.run(run())


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    watch(True, monkeypatch)
    err = capsys.readouterr().err
    assert "weights of layer 3 " in err
    assert " 40% |" in err
    assert err.rpartition("\r")[2].strip() == ""  # gone at the end


def test_progress_is_a_few_log_lines_elsewhere(monkeypatch, caplog):
    caplog.set_level("INFO", "mambad")
    watch(False, monkeypatch)
    assert caplog.messages == ["loading: weights of layer 3, 40%"]


def test_the_announcement_is_plan_address_and_command(capsys):
    announce(("model  x", "slots  3"), URL, ServerConfig(), SETTINGS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["model  x", "slots  3", f"mambad: listening on {URL}"]
    assert lines[3].startswith("try: curl -N ")


def test_the_command_survives_a_shell():
    words = shlex.split(first_command(URL, ServerConfig(), SETTINGS))
    assert words[:3] == ["curl", "-N", f"{URL}/v1/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert (body["model"], body["stream"]) == ("it's mine", True)
    assert "Authorization" not in first_command(URL, ServerConfig(), SETTINGS)


def test_the_command_names_the_unix_socket_and_no_key():
    settings = AppSettings(served_model_names=("m",), api_keys=("secret",))
    command = first_command("unix:/run/m.sock", ServerConfig(uds="/run/m.sock"), settings)
    assert "--unix-socket /run/m.sock http://localhost/v1/completions" in command
    assert '"Authorization: Bearer $MAMBAD_API_KEY"' in command
    assert "secret" not in command


@pytest.mark.parametrize(
    ("is_loopback", "keys", "is_loud"),
    [(True, (), False), (False, ("k",), False), (True, ("k",), False), (False, (), True)],
)
def test_only_an_open_server_without_a_key_is_warned_of(caplog, is_loopback, keys, is_loud):
    warn_if_open(AppSettings(served_model_names=("m",), is_loopback=is_loopback, api_keys=keys), URL)
    assert (f"{URL} is open to everybody" in caplog.text) == is_loud


def test_the_log_names_what_was_changed_and_every_warning(caplog):
    caplog.set_level("INFO", "mambad")
    log_configuration(load_config({"port": "1"}, {"MAMBAD_API_KEY": "secret", "MAMBAD_QUUX": "1"}))
    assert caplog.messages == ["MAMBAD_QUUX is no setting of mambad", "settings: port=1 api_key=***"]
    caplog.clear()
    log_configuration(load_config({}, {}))
    assert caplog.messages == ["settings: all at their defaults"]
