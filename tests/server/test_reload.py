"""Keys, certificate and log level are read again while the server runs; what is broken changes nothing."""

import asyncio
import logging
import os
import signal

import pytest

from mambad.engine.errors import ConfigError
from mambad.server import reload as reload_module
from mambad.server.access import KeyRing
from mambad.server.config import ServerConfig
from mambad.server.key_files import read_keys, require_keys, stamp_of
from mambad.server.reload import Reloader

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def _levels():
    loggers = [logging.getLogger(), logging.getLogger("mambad")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


class Files:
    """A key file, and a reloader that watches it."""

    def __init__(self, folder, level="info"):
        self.path = folder / "keys"
        self.path.write_text("one\n")
        self.ring = KeyRing(("fixed", "one"))
        self.admin = KeyRing(("admin",))
        self.level = level
        self.engine_levels = []
        config = ServerConfig(api_key=("fixed",), api_key_file=str(self.path), admin_api_key=("admin",))
        self.reloader = Reloader(
            config,
            self.ring,
            self.admin,
            None,
            lambda: ServerConfig(log_level=self.level),
            self.engine_levels.append,
        )

    def write(self, text):
        self.path.write_text(text)
        os.utime(self.path, ns=(1, hash(text) % 10**9))

    def held(self):
        return [key for key in (b"fixed", b"one", b"two") if self.ring.holds(key)]


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def test_a_changed_key_file_counts_at_the_next_look(files):
    files.write("two\n")
    assert files.held() == [b"fixed", b"one"]
    files.reloader.poll()
    assert files.held() == [b"fixed", b"two"]
    assert files.admin.holds(b"admin")


def test_an_unchanged_file_is_not_read(files, caplog):
    caplog.set_level("WARNING")
    files.reloader.poll()
    assert caplog.messages == []


def test_a_file_that_can_not_be_read_leaves_the_keys_and_is_said_once(files, caplog):
    files.path.unlink()
    files.reloader.poll()
    files.reloader.poll()
    assert files.held() == [b"fixed", b"one"]
    assert caplog.text.count("keys stay as they were") == 1
    files.write("two\n")
    files.reloader.poll()
    assert files.held() == [b"fixed", b"two"]


def test_an_emptied_file_lets_nobody_in(files):
    files.write("# none\n")
    files.reloader.poll()
    assert files.held() == [b"fixed"]
    assert files.ring.is_enabled


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def test_the_watcher_looks_by_itself_and_on_sighup(files, monkeypatch):
    monkeypatch.setattr(reload_module, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    async with files.reloader.watching():
        files.write("two\n")
        await until(lambda: files.ring.holds(b"two"))
        files.level = "error"
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: logging.getLogger("mambad").level == logging.ERROR)
        assert logging.getLogger().level == logging.ERROR
    assert files.engine_levels == ["error"]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


async def test_on_a_terminal_sighup_is_left_alone(files, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    async with files.reloader.watching():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_settings_that_can_not_be_read_change_nothing(tmp_path, caplog):
    files = Files(tmp_path)

    def fail():
        raise ConfigError("the file is gone")

    files.reloader._read_config = fail
    level = logging.getLogger().level
    files.write("two\n")
    files.reloader.reload()
    assert files.held() == [b"fixed", b"two"], "each part by itself"
    assert logging.getLogger().level == level
    assert "reloading: the file is gone" in caplog.text


def test_key_files_have_comments_and_blank_lines(tmp_path):
    path = tmp_path / "keys"
    path.write_text("\n# ours\n a \nb\n")
    assert read_keys("--f", str(path)) == ("a", "b")
    path.write_text("a\nclé\n")
    with pytest.raises(ConfigError, match="key 2 has characters that are not ASCII"):
        read_keys("--f", str(path))
    assert (read_keys("--f", None), require_keys("--f", None)) == ((), ())
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"--f: .* can't be read"):
        read_keys("--f", str(path))
    path.write_text("# nothing")
    with pytest.raises(ConfigError, match="holds no key"):
        require_keys("--f", str(path))
    assert stamp_of(str(tmp_path / "gone")) is None
    assert stamp_of(None) is None
