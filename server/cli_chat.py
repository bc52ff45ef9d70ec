"""`mambad chat [MESSAGE]`: a conversation with any OpenAI-compatible server, in the terminal or in a pipe.

With a MESSAGE it prints one answer and ends. Without one it reads messages line by line; Ctrl-C ends an
answer, Ctrl-D the program.
"""

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

from mambad.server.cli_client import ApiClient, ClientError, add_client_flags
from mambad.server.cli_parser import Parser

HELP = """/reset          forget the conversation
/system [TEXT]  set, or remove, the system message; forgets the conversation
/exit           leave (also Ctrl-D); Ctrl-C ends an answer"""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def run(words: Sequence[str]) -> int:
    """Hold a conversation; returns the exit code."""
    options = _parser().parse_strictly(words)
    conversation = Conversation(options)
    try:
        if options.message is None:
            return _converse(conversation)
        conversation.say(sys.stdin.read() if options.message == "-" else options.message)
    except ClientError as error:
        print(f"mambad: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, less) has enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class Conversation:
    """The messages so far, and where they are sent."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._client = ApiClient(options, "mambad-chat")
        self._system: str | None = options.system
        self._messages: list[dict[str, str]] = []
        self._shows_thoughts = sys.stdout.isatty()

    def reset(self) -> None:
        """Forget all messages but the system's."""
        self._messages = []

    def set_system(self, text: str) -> None:
        """Begin again under another system message; an empty one is none."""
        self._system = text or None
        self.reset()

    def say(self, text: str) -> None:
        """Send a message and print the answer as it arrives. One that Ctrl-C ends counts as far as it came.

        Raises:
            ClientError: there is no whole answer; the message counts as not sent.
        """
        self._messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            with closing(self._deltas()) as deltas:
                for delta in deltas:
                    self._show(delta, pieces)
        except ClientError:
            self._messages.pop()
            print(flush=True)
            raise
        except KeyboardInterrupt:
            pass
        print(flush=True)
        self._messages.append({"role": "assistant", "content": "".join(pieces)})

    def _show(self, delta: dict[str, Any], pieces: list[str]) -> None:
        thought, text = delta.get("reasoning_content"), delta.get("content")
        if thought and self._shows_thoughts:
            print(f"{DIM}{thought}{PLAIN}", end="", flush=True)
        if text:
            pieces.append(text)
            print(text, end="", flush=True)

    def _deltas(self) -> Generator[dict[str, Any], None, None]:
        options = self._options
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        body = {
            "messages": system + self._messages,
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "seed": options.seed,
        }
        for event in self._client.events("/chat/completions", body):
            yield from (choice.get("delta") or {} for choice in event.get("choices", ()))


def _converse(conversation: Conversation) -> int:
    """Answer line by line until the input ends."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print("Write a message; /help lists commands, Ctrl-D ends.")
    while True:
        try:
            line = _read("> " if is_terminal else "").strip()
        except EOFError:
            if is_terminal:
                print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if line == "/exit":
            return 0
        try:
            _obey(conversation, line)
        except ClientError as error:
            print(f"mambad: error: {error}", file=sys.stderr)
            if not is_terminal:
                return 1


def _read(prompt: str) -> str:
    if prompt:
        return input(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _obey(conversation: Conversation, line: str) -> None:
    """Carry out a command, or send a message."""
    command, _, text = line.partition(" ")
    if command == "/reset":
        conversation.reset()
    elif command == "/system":
        conversation.set_system(text.strip())
    elif command.startswith("/"):
        print(HELP)
    elif line:
        conversation.say(line)


def _parser() -> Parser:
    parser = Parser(
        prog="mambad chat",
        description="Talk to a model behind an OpenAI-compatible server.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "message", nargs="?", metavar="MESSAGE", help="say this and leave; - reads standard input"
    )
    add_client_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    return parser
