"""`mambad bench serve` and `mambad bench offline`: measure a server over HTTP, or the engine without one.

Parses the words, prints tables, writes the JSON. What is measured and how stands in `bench_load` (over HTTP)
and `bench_offline` (in this process).
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import uvloop
from tqdm import tqdm

from mambad.engine.errors import ConfigError
from mambad.engine.logs import set_up_logging
from mambad.server.bench_client import Target
from mambad.server.bench_flags import DEFAULT_LEVELS, REQUESTS_PER_STREAM, offline_parser, serve_parser
from mambad.server.bench_load import Load, Prompts, arrival_times, run_load
from mambad.server.bench_offline import measure_engine
from mambad.server.bench_offline_report import OfflineRun, OfflineSizes, offline_table, profile_table
from mambad.server.bench_report import Summary, error_lines, serve_table, summarise
from mambad.server.cli import COMMANDS
from mambad.server.cli_client import ClientError, api_root, first_model, read_api_key
from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS, MEMORY, MODEL
from mambad.server.config_parts import engine_config
from mambad.server.config_sources import load_config
from mambad.server.model_source import find_model

USAGE = """\
usage: mambad bench serve --url URL [--flag value ...]
       mambad bench offline [MODEL] [--flag value ...]

`mambad bench serve --help` and `mambad bench offline --help` list the flags."""
OFFLINE_FLAGS = [
    flag
    for flag in FLAGS
    if (flag.section in (MODEL, MEMORY) or flag.name in ("log_level", "log_format"))
    and not flag.name.startswith(("data_parallel", "served_model_name"))
]


def run(words: Sequence[str]) -> int:
    """Run `serve` or `offline`; returns the exit code.

    Raises:
        ConfigError, LoadError: wrong usage, or the model can't be run.
    """
    kind, *rest = words or [""]
    if kind in ("--help", "-h"):
        print(USAGE)
        return 0
    if kind == "serve":
        return _serve(rest)
    if kind == "offline":
        return _offline(rest)
    raise ConfigError(f"bench {kind or 'needs a word'}: use `mambad bench serve` or `mambad bench offline`")


def _serve(words: Sequence[str]) -> int:
    options = serve_parser().parse_strictly(words)
    _check_output(options.output)
    headers = {"Content-Type": "application/json", "User-Agent": "mambad-bench"}
    if key := read_api_key(options):
        headers["Authorization"] = f"Bearer {key}"
    root = api_root(options.url)
    try:
        target = Target.from_url(f"{root}/completions", headers)
        model = options.model or first_model(root, headers)
    except ClientError as error:
        print(f"mambad: error: {error}", file=sys.stderr)
        return 1
    summaries = _measure(target, model, options)
    print("\n".join(serve_table(summaries)))
    for item in summaries:
        print(*error_lines(item.errors), sep="\n", end="\n" if item.errors else "")
    settings = {name: value for name, value in vars(options).items() if name != "api_key_file"}
    results = [item.as_json() for item in summaries]
    _write(
        options.output, {"command": "bench serve", "model": model, "settings": settings, "levels": results}
    )
    return 0 if all(item.num_errors < item.num_requests for item in summaries) else 1


def _measure(target: Target, model: str, options: argparse.Namespace) -> list[Summary]:
    prompts = Prompts(
        model=model,
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        max_token_id=options.max_token_id,
        is_text=options.text_prompts,
    )
    loads = _loads(options)
    summaries = []
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        tqdm(
            total=sum(load.num_requests for load in loads), unit="request", disable=None, leave=False
        ) as bar,
    ):
        warm_up = prompts.bodies(options.warmup, options.seed - 1)
        runner.run(run_load(target, Load(num_requests=options.warmup, concurrency=1), warm_up))
        for number, load in enumerate(loads):
            seed = options.seed + number * 1_000_003
            bodies = prompts.bodies(load.num_requests, seed)
            arrivals = [] if load.rate is None else arrival_times(load.rate, load.num_requests, seed)
            bar.set_description(f"{load.rate:g} a second" if load.rate else f"{load.concurrency} at once")
            done, duration_s = runner.run(run_load(target, load, bodies, arrivals, lambda: _tick(bar)))
            summaries.append(summarise(load, done, duration_s))
    return summaries


def _tick(bar: "tqdm[Any]") -> None:
    bar.update()


def _loads(options: argparse.Namespace) -> list[Load]:
    """Return the measurements that the flags ask for, in order."""
    timeout_s = options.timeout
    if options.rate is not None:
        count = options.num_requests or 64
        return [Load(num_requests=count, rate=rate, timeout_s=timeout_s) for rate in options.rate]
    return [
        Load(
            num_requests=options.num_requests or REQUESTS_PER_STREAM * level,
            concurrency=level,
            timeout_s=timeout_s,
        )
        for level in options.concurrency or DEFAULT_LEVELS
    ]


def _offline(words: Sequence[str]) -> int:
    flags = offline_parser()
    description = "Run the engine in this process, without HTTP, and measure prefill and decode."
    arguments, file = parse_settings("bench offline", description, OFFLINE_FLAGS, words, parent=flags)
    own = {name: arguments[name] for name in vars(flags.parse_args([]))}
    loaded = load_config(
        {name: text for name, text in arguments.items() if name not in own}, os.environ, file
    )
    options = argparse.Namespace(**own)
    _check_output(options.output)
    settings = loaded.config
    if max(options.batch) > settings.max_num_seqs:
        limit = f"--max-num-seqs {settings.max_num_seqs}"
        raise ConfigError(f"--batch {max(options.batch)} is above {limit}; raise that, or measure fewer rows")
    set_up_logging(settings.log_level, settings.log_format)
    config = engine_config(settings, find_model(settings, tuple(COMMANDS)))
    sizes = OfflineSizes(options.batch, options.input_tokens, options.output_tokens)
    report = measure_engine(config, sizes, is_profiled=options.profile)
    print(*report.plan, "", *offline_table(report), sep="\n")
    for item in report.runs:
        _print_profiles(item)
    _write(options.output, {"command": "bench offline", **report.as_json()})
    return 0


def _print_profiles(run: OfflineRun) -> None:
    for profile in run.profiles:
        print("", *profile_table(profile, run.batch), sep="\n")


def _check_output(path: str | None) -> None:
    """Refuse a file that can't be written before minutes are spent on its contents."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"--output: there is no folder {Path(path).absolute().parent}")


def _write(path: str | None, report: dict[str, Any]) -> None:
    if path is None:
        return
    try:
        Path(path).write_bytes(
            orjson.dumps({"mambad": version("mambad"), **report}, option=orjson.OPT_INDENT_2)
        )
    except OSError as error:
        raise ConfigError(f"--output: can't write {path}: {error.strerror}") from None
