"""Finds out whether a grammar can be compiled, before its request is answered, at a bounded cost.

Grammars come from clients, and there are small ones that take for ever. So they are compiled by way of trial
in a process of their own, one at a time, with limits on processor time and memory; verdicts are remembered.
Used from the event loop, which it never keeps waiting.
"""

import asyncio
import logging
import select
import signal
import subprocess
import sys
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import msgspec

from mambad.engine.grammar_spec import MAX_COMPILE_CPU_S, Grammar
from mambad.server.errors import RETRY_SOON, ApiError, invalid

logger = logging.getLogger(__name__)

MAX_WALL_S = 10.0
MAX_WAITING = 64
MAX_VERDICTS = 512
MAX_VERDICT_CHARS = 8 << 20
COMMAND = (sys.executable, "-m", "mambad.server.grammar_process")


class GrammarChecker:
    """Gives verdicts on grammars. The process is started by the first of them."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[Grammar, str] = OrderedDict()
        self._num_chars = 0
        self._num_waiting = 0
        self._pool = ThreadPoolExecutor(1, "mambad-grammar")
        self._trial = _Trial()
        weakref.finalize(self, self._trial.end)

    async def check(self, grammar: Grammar | None, is_able: bool = True) -> None:
        """Return if a request's grammar can be compiled, or if it has none.

        Args:
            grammar: what the answer must look like.
            is_able: whether the engine can constrain an answer.

        Raises:
            ApiError: 400 for a grammar that can't be served, 429 when there is no verdict now.
        """
        if grammar is None:
            return
        if not is_able:
            message = "Answers can't be constrained with this model: its tokenizer is of an unknown kind."
            raise invalid(grammar.field, message, "unsupported_parameter")
        verdict = self._verdicts.get(grammar)
        if verdict is None:
            verdict = await self._find_out(grammar)
        if verdict:
            raise invalid(grammar.field, f"`{grammar.field}` can't be used: {verdict}", "invalid_grammar")

    async def _find_out(self, grammar: Grammar) -> str:
        if self._num_waiting >= MAX_WAITING:
            text = "Too many new grammars wait to be compiled; please retry."
            raise ApiError(429, text, grammar.field, "grammar_queue_full", RETRY_SOON)
        self._num_waiting += 1
        try:
            loop = asyncio.get_running_loop()
            verdict = await loop.run_in_executor(self._pool, self._trial.ask, grammar)
        finally:
            self._num_waiting -= 1
        if verdict is None:
            text = "The grammar could not be compiled now; please retry."
            raise ApiError(429, text, grammar.field, "grammar_timeout", RETRY_SOON)
        self._remember(grammar, verdict)
        return verdict

    def _remember(self, grammar: Grammar, verdict: str) -> None:
        if grammar not in self._verdicts:
            self._verdicts[grammar] = verdict
            self._num_chars += len(grammar.text)
        while len(self._verdicts) > MAX_VERDICTS or self._num_chars > MAX_VERDICT_CHARS:
            oldest, _ = self._verdicts.popitem(last=False)
            self._num_chars -= len(oldest.text)


class _Trial:
    """The process, used from one thread at a time; it is started when there is something to ask."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, grammar: Grammar) -> str | None:
        """Return what is wrong with a grammar, empty if nothing is; None: that can't be said this time."""
        process = self._process
        if process is None or process.poll() is not None:
            self.end()
            process = self._process = _start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            is_answered = bool(select.select([process.stdout], [], [], MAX_WALL_S)[0])
            line = process.stdout.readline() if is_answered else b""
        except OSError:
            line = b""
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=str)
        self.end()
        logger.warning("a grammar of %d characters could not be compiled", len(grammar.text))
        if process.returncode == -signal.SIGKILL:
            # By us after MAX_WALL_S, or from outside: it may have had too little of a busy processor.
            return None
        if process.returncode == -signal.SIGPROF:
            return f"compiling it takes more than {MAX_COMPILE_CPU_S:g} s"
        return "compiling it takes too much memory"

    def end(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        with process:  # closes its pipes and waits for it
            if process.poll() is None:
                process.kill()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        COMMAND, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
