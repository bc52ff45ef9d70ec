"""The flags of `mambad bench`. The settings that `bench offline` shares with `serve` are not among them."""

import argparse
from typing import Any

from mambad.server.cli_parser import Parser

DEFAULT_LEVELS = (1, 8, 32)
REQUESTS_PER_STREAM = 4


def serve_parser() -> Parser:
    """Return the parser of `bench serve`."""
    parser = Parser(
        prog="mambad bench serve", description="Measure any OpenAI-compatible /v1/completions endpoint."
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server is (%(default)s)")
    parser.add_argument("--model", help="served name; default: the first one that the server lists")
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=_counts, metavar="N,...", help="so many requests at any time; default: 1,8,32"
    )
    load.add_argument("--rate", type=_rates, metavar="R,...", help="Poisson arrivals, so many a second")
    parser.add_argument(
        "--num-requests",
        type=_count,
        metavar="N",
        help=f"a measurement; default: {REQUESTS_PER_STREAM} × the concurrency, or 64 with --rate",
    )
    _add_sizes(parser)
    parser.add_argument("--warmup", type=int, default=1, metavar="N", help="requests before, not counted (1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (0)")
    parser.add_argument(
        "--max-token-id", type=_count, default=250, metavar="N", help="highest id in a prompt (%(default)s)"
    )
    parser.add_argument(
        "--text-prompts", action="store_true", help="send words: for servers that take no token ids"
    )
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of a request (600 s)")
    parser.add_argument("--api-key-file", metavar="FILE", help="default: the variable MAMBAD_API_KEY")
    return parser


def offline_parser() -> Parser:
    """Return the parser of those flags of `bench offline` that are no settings."""
    parser = Parser(prog="mambad bench offline", add_help=False)
    group = parser.add_argument_group("Benchmark")
    group.add_argument(
        "--batch", type=_counts, default=DEFAULT_LEVELS, metavar="N,...", help="rows at once (1,8,32)"
    )
    _add_sizes(group)
    group.add_argument(
        "--profile", action="store_true", help="time, bytes and bandwidth of every op, per kind of step"
    )
    return parser


def _add_sizes(parser: Any) -> None:
    parser.add_argument("--input-tokens", type=_count, default=64, metavar="N", help="of a prompt (64)")
    parser.add_argument("--output-tokens", type=_count, default=64, metavar="N", help="of an answer (64)")
    parser.add_argument("--output", metavar="FILE", help="write the results as JSON too")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = (0.0,)
    if not all(0 < rate < float("inf") for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive rate")
    return rates
