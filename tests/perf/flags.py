"""The flags of `bench.py`."""

import argparse
from pathlib import Path

import shapes
import systems

ROOT = Path(__file__).parents[2]
KINDS = ("mambad", "llama.cpp", "llama-bench", "vllm", "transformers")
QUICK = {
    "models": ["mamba-130m"], "precisions": ["bfloat16"], "concurrency": [1, 8, 32], "prefill": [512],
    "repeats": 2, "rate": 2.0, "arrivals": 8, "cell_seconds": 8.0,
}  # fmt: skip


def parse(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    _add_choice(parser)
    _add_effort(parser)
    _add_systems(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="results as JSON; a later run extends it")
    parser.add_argument(
        "--redo",
        default="",
        metavar="SYSTEM,...",
        help="measure these anew though FILE has them; all: every one",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="only print the tables of this FILE")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args()
    if options.checkpoints is None:
        options.checkpoints = options.folder
    options.max_batch = max(options.concurrency)
    return options


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", type=_words(shapes.NAMES), default=["mamba-130m", "mamba2-130m"])
    parser.add_argument(
        "--precisions", type=_words(systems.GGUF_KINDS), default=["bfloat16", "int8", "float32"],
        help="int8 is beside Q8_0, int4 beside Q4_K_M",
    )  # fmt: skip
    parser.add_argument("--systems", type=_words(KINDS), default=list(KINDS))
    parser.add_argument("--concurrency", type=_numbers, default=[1, 8, 32, 128], help="streams at once")
    parser.add_argument("--prefill", type=_numbers, default=[512, 4096], help="tokens of a long prompt")


def _add_effort(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="one model, one precision, small loads: minutes")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument(
        "--cell-seconds",
        type=float,
        default=30.0,
        help="a cell that has taken this long gets no further round",
    )
    parser.add_argument(
        "--cell-limit", type=float, default=60.0, help="a cell that would take longer than this is left out"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="arrivals a second, for the TTFT")
    parser.add_argument("--arrivals", type=int, default=20, help="requests of that measurement; 0: none")
    parser.add_argument("--threads", type=int, default=1, help="computing threads of every system")
    parser.add_argument("--no-pin", action="store_true", help="do not keep this client to the last core")


def _add_systems(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mambad-variant",
        action="append",
        default=[],
        metavar="NAME:FLAGS",
        help="one more row, with these flags",
    )
    parser.add_argument("--llama-bin", type=Path, metavar="DIR", help="where llama-server and its tools are")
    parser.add_argument(
        "--llama-python", metavar="FILE", help="interpreter with gguf, without --llama-bin xllamacpp"
    )
    parser.add_argument("--llama-url", help="a llama.cpp server that runs already, with the only model")
    parser.add_argument("--vllm", metavar="FILE", help="the command vllm of an environment of its own")
    parser.add_argument("--vllm-url", help="a vLLM server that runs already, with the only model")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/perf", help="of logs and of checkpoints")
    parser.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="of the models, where they are elsewhere"
    )


def _words(allowed: tuple[str, ...] | dict[str, str]):
    def read(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(allowed)}")
        return words

    return read


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]
