"""The servers that clients talk to: real processes, started when first asked for, looked at after each check.

- `demo`: the demo model as it ships, behind a key.
- `tools`: the demo model with a template that knows tools, without a key.
- `small`: the demo model with a context of 64 tokens, for those who send thousands of requests.
- `mamba`: a random Mamba with a tokenizer of bytes, whose numbers Transformers knows too.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import httpx
from toy_models import random_mamba
from toy_process import (
    EOS_ID,
    ServedProcess,
    serve,
    wait_until_all_slots_are_free,
    write_byte_tokenizer,
)

HERE = Path(__file__).parent
KEY = "conformance-key"
COMMON = ("--threads", "1", "--max-num-seqs", "8")
FLAGS = {
    "demo": ("--api-key", KEY),
    "tools": ("--chat-template", str(HERE / "tools.jinja")),
    "small": ("--max-model-len", "64"),
    "mamba": ("--dtype", "float32", "--max-model-len", "1024"),
}
IDLE_TIMEOUT_S = 10
NUM_SPECIAL = 2
"""Tokens of the byte tokenizer from EOS_ID on."""


class Servers:
    """Servers by kind.

    Args:
        folder: where checkpoints are written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._served: dict[str, ServedProcess] = {}
        self._num_lines_seen: dict[str, int] = {}

    def __enter__(self) -> "Servers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def url(self, kind: str) -> str:
        """Return where a server of this kind listens; start it when there is none."""
        if kind not in self._served:
            model = self.mamba_folder() if kind == "mamba" else "demo"
            self._served[kind] = self._stack.enter_context(serve(model, *COMMON, *FLAGS[kind]))
            self._num_lines_seen[kind] = 0
        return self._served[kind].url

    def mamba_folder(self) -> Path:
        """Return the checkpoint of the random Mamba, written by Transformers.

        It has no rows of padding: those count in Transformers' log-likelihoods, and not in mambad's.
        """
        folder = self._folder / "mamba"
        if not folder.exists():
            model = random_mamba(vocab_size=EOS_ID + NUM_SPECIAL, hidden_size=48, eos_token_id=EOS_ID)
            model.save_pretrained(folder)
            write_byte_tokenizer(folder)
        return folder

    def problems(self) -> list[str]:
        """Return what is wrong with the servers after a check: they must be up, idle and silent."""
        found = []
        for kind, served in self._served.items():
            lines = served.lines[self._num_lines_seen[kind] :]
            self._num_lines_seen[kind] += len(lines)
            if any("Traceback" in line or " ERROR " in line for line in lines):
                found.append(f"the server {kind!r} reported an error: " + "\n".join(lines[-20:]))
            try:
                httpx.get(f"{served.url}/health", timeout=IDLE_TIMEOUT_S).raise_for_status()
                wait_until_all_slots_are_free(served.url, IDLE_TIMEOUT_S)
            except httpx.HTTPError as error:
                found.append(f"the server {kind!r} is not healthy: {error!r}")
            except AssertionError:
                found.append(f"the server {kind!r} still holds slots or blocks {IDLE_TIMEOUT_S} s later")
        return found
