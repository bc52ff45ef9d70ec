"""`mambad complete PROMPT`: a small streaming client for any OpenAI-compatible server.

Prints the text as it arrives; exit code 1 and one line when the server can't be reached or answers with an
error.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence

from mambad.server.cli_client import ApiClient, ClientError, add_client_flags
from mambad.server.cli_parser import Parser


def run(words: Sequence[str]) -> int:
    """Stream one completion to standard output; returns the exit code."""
    options = _parser().parse_strictly(words)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    try:
        for text in complete(options, prompt):
            print(text, end="", flush=True)
        print()
    except ClientError as error:
        print(f"mambad: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, less) has enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def complete(options: Namespace, prompt: str) -> Iterator[str]:
    """Yield the pieces of the completion's text as they arrive.

    Raises:
        ClientError: no answer, an error answer, or an error in mid-stream.
    """
    body = {
        "prompt": prompt,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "stop": options.stop,
    }
    for event in ApiClient(options, "mambad-complete").events("/completions", body):
        yield from (choice.get("text") or "" for choice in event.get("choices", ()))


def _parser() -> Parser:
    parser = Parser(
        prog="mambad complete", description="Stream a completion from an OpenAI-compatible server."
    )
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue; - reads standard input")
    add_client_flags(parser)
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; repeatable")
    return parser
