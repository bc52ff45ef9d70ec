"""The process in which grammars are compiled by way of trial: `python -m mambad.server.grammar_process`.

Reads grammars, one a line of JSON, from standard input and answers each with a line of JSON: what is wrong
with it, or an empty string. A grammar that takes too much time or memory ends the process, which is what the
process is for; `grammar_check` starts the next one. It ends with its standard input.
"""

import resource
import signal
import sys

import msgspec

from mambad.engine.grammar import GrammarError, Vocabulary
from mambad.engine.grammar_spec import MAX_COMPILE_CPU_S, Grammar

MAX_MEMORY_BYTES = 1 << 30


def main() -> int:
    """Give verdicts until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also reaches the front end, which decides what it means
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary = Vocabulary.of_bytes()
    decoder = msgspec.json.Decoder(Grammar)
    for line in sys.stdin.buffer:
        verdict = ""
        # Nobody handles this timer's signal: it ends the process.
        signal.setitimer(signal.ITIMER_PROF, MAX_COMPILE_CPU_S)
        try:
            vocabulary.try_out(decoder.decode(line))
        except GrammarError as error:
            verdict = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
