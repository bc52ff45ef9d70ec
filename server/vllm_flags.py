"""Flags of vLLM that mean nothing here: what they switch is always so, or there is nothing like it.

They are taken out of a command line with one warning, so that a command written for vLLM can be used. A flag
that would change answers or access is not among them: that one is unknown, and ends the start.
"""

import re
from collections.abc import Sequence

SWITCHES = frozenset((
    "--calculate-kv-scales",
    "--disable-cascade-attn",
    "--disable-custom-all-reduce",
    "--disable-frontend-multiprocessing",
    "--disable-hybrid-kv-cache-manager",
    "--disable-log-requests",
    "--disable-log-stats",
    "--disable-uvicorn-access-log",
    "--enable-auto-tool-choice",
    "--enable-chunked-prefill",
    "--enable-log-requests",
    "--enable-mamba-cache-stochastic-rounding",
    "--enable-offline-docs",
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
    "--enable-server-load-tracking",
    "--enable-ssl-refresh",
    "--enable-tokenizer-info-endpoint",
    "--skip-mm-profiling",
    "--trust-remote-code",
    "--use-tqdm-on-load",
))  # fmt: skip
WITH_VALUE = frozenset((
    "--api-server-count",
    "--attention-backend",
    "--compilation-config",
    "--config-format",
    "--cpu-offload-gb",
    "--distributed-executor-backend",
    "--guided-decoding-backend",
    "--kv-cache-dtype",
    "--limit-mm-per-prompt",
    "--long-prefill-token-threshold",
    "--mamba-backend",
    "--mamba-block-size",
    "--mamba-cache-dtype",
    "--mamba-cache-mode",
    "--max-log-len",
    "--max-long-partial-prefills",
    "--max-num-partial-prefills",
    "--max-parallel-loading-workers",
    "--max-seq-len-to-capture",
    "--mm-processor-kwargs",
    "--num-gpu-blocks-override",
    "--preemption-mode",
    "--swap-space",
    "--tokenizer-mode",
    "--uvicorn-log-level",
    "-O",
))  # fmt: skip
_LEVEL = re.compile("-O[0-9]")


def drop_meaningless(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command line without those flags, and what they were called.

    A long flag may be written with underscores, a switch as --no-….
    """
    kept: list[str] = []
    dropped: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        if _LEVEL.fullmatch(name) or name.replace("--no-", "--", 1) in SWITCHES:
            dropped.append(name)
            continue
        if name not in WITH_VALUE:
            kept.append(name + word[len(name) :] if name.startswith("--") else word)
            continue
        dropped.append(name)
        if not equals:
            next(rest, None)
    return kept, dropped
