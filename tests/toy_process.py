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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toy_models import toy_model

VOCABULARY = 300
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
    config |= {"vocab_size": VOCABULARY, "eos_token_id": 256, "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


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

    def engine_pid(self) -> int:
        """Return the process id of the engine: the server's one child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1
        return int(children[0])


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
