"""`mambad serve` as a user starts it: a real process on a free port, with a tiny random hybrid model."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toy_models import toy_model

VOCABULARY = 300
EOS_ID = 256
START_TIMEOUT_S = 60


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mambad-served-")


@functools.cache
def served_model(family: str = "granite") -> Path:
    """Return a folder with a configuration and a byte-level tokenizer, to be served with random weights."""
    folder = Path(_folder().name) / f"toy-{family}"
    folder.mkdir()
    config = json.loads((toy_model(family).folder / "config.json").read_text())
    config |= {"vocab_size": VOCABULARY, "eos_token_id": EOS_ID, "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token a byte, `EOS_ID` and one more special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


@dataclass
class ServedProcess:
    """A server that has said where it listens.

    Attributes:
        process: what was started.
        url: `http://host:port`.
        lines: all it printed so far.
    """

    process: subprocess.Popen[str]
    url: str
    lines: list[str]

    def engine_pids(self) -> list[int]:
        """Return the process ids of the engines: the server's children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def engine_pid(self) -> int:
        """Return the process id of the one engine."""
        (pid,) = self.engine_pids()
        return pid


@contextmanager
def serve(
    model: Path | str, *flags: str, environment: dict[str, str] | None = None
) -> Iterator[ServedProcess]:
    """Run `mambad serve MODEL --port 0 FLAGS` until the block ends; it is drained, or killed after 15 s."""
    command = [sys.executable, "-m", "mambad", "serve", str(model), "--port", "0", *flags]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    lines: list[str] = []
    url: list[str] = []
    is_known = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            found = re.fullmatch(r"mambad: listening on (http://\S+)", line.rstrip())
            if found:
                url.append(found[1])
                is_known.set()
        is_known.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert is_known.wait(START_TIMEOUT_S), "\n".join(lines)
        assert url, "\n".join(lines)
        yield ServedProcess(process, url[0], lines)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def metric(text: str, name: str, **labels: str) -> float:
    """Return the sum of the series of that name with those labels."""
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if re.match(rf"{name}(\{{|\s)", line) and all(f'{k}="{v}"' in line for k, v in labels.items())
    ]
    assert found, name
    return sum(found)


def wait_until_all_slots_are_free(url: str, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        text = httpx.get(f"{url}/metrics").text
        free, capacity = (
            metric(text, "mambad_state_slots", state="free"),
            metric(text, "mambad_state_slot_capacity"),
        )
        if free == capacity and metric(text, "mambad_kv_blocks", state="free") == metric(
            text, "mambad_kv_block_capacity"
        ):
            return
        assert time.monotonic() < deadline, text
        time.sleep(0.1)
