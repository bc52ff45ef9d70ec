"""Writes `docs/configuration.md` from the table of settings; a test fails when the page is stale.

`python -m mambad.server.config_docs` prints the page; `make fmt` puts it in its place.
"""

import sys
from itertools import groupby

from mambad.server.cli_parser import default_text
from mambad.server.config import FLAGS
from mambad.server.flag import Flag

_HEAD = """\
# Configuration

<!-- Made by `make fmt` from server/config.py; do not edit. -->

Every setting can be written in four places. The first that has it wins:

1. a flag: `--max-num-seqs 32`;
2. an environment variable: `MAMBAD_MAX_NUM_SEQS=32`;
3. a line of the YAML file that `--config FILE` (or `MAMBAD_CONFIG`) names: `max-num-seqs: 32`;
4. the default.

A list is a repeated flag (or values with commas between them, except for keys), commas in the environment, a
YAML list in the file. A switch is `--x` or `--no-x`; elsewhere `true` or `false`. Sizes and counts of tokens
take a unit, with vLLM's meaning: `32k` is 32,000 and `32K` is 32,768; `4GB` is 4,000,000,000 and `4GiB`, like
`4G`, 4,294,967,296. Times are seconds, or have a unit: `500ms`, `5m`, `24h`. `auto` (or `none`, where that
reads better) asks for what start-up computes.

A wrong value, an unknown flag and an unknown key in the file end the start with exit code 2 and one line
that names the place. An unknown `MAMBAD_…` variable only warns, and what Kubernetes puts into the environment
for a service of that name (`MAMBAD_PORT=tcp://…`) is ignored. Keys belong into a file or the environment, not
on the command line, and are shown as `***` in the log.

Three variables are not settings: `MAMBAD_CONFIG` names the file, `MAMBAD_KERNELS` (`auto`, `cpu`,
`reference`) chooses the kernels, and `MAMBAD_CPU_LEVEL` (`amx`, `avx512bf16`, `avx512`, `avx2`, `generic`)
the instructions that the C kernels use. `OMP_NUM_THREADS` decides the number of threads when `--threads`
does not.
"""


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for section, flags in groupby(FLAGS, key=lambda flag: flag.section):
        parts.append(f"\n## {section}\n\n| setting | value | default | |\n|---|---|---|---|\n")
        parts += [_row(flag) for flag in flags]
    return "".join(parts)


def _row(flag: Flag) -> str:
    option = f"{flag.option} --no-{flag.option[2:]}" if flag.is_switch else flag.option
    value = ", ".join(f"`{choice}`" for choice in flag.choices) or flag.kind.word or "switch"
    default = default_text(flag)
    if not flag.default_text and default != "none":
        default = f"`{default}`"
    names = " ".join(f"`{name}`" for name in option.split())
    return f"| {names} | {value}{', list' if flag.is_list else ''} | {default} | {flag.help} |\n"


if __name__ == "__main__":
    sys.stdout.write(render())
