"""Results as a table in the terminal and as the page `docs/conformance.md`. Only what was run is in them."""

from collections.abc import Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
HEAD = """# Conformance: clients that nobody here wrote

`make conformance` runs the programs below against real `mambad serve` processes on loopback: the demo model,
and for lm-eval a random Mamba that Transformers wrote. Each client lives in an environment of its own under
`build/conformance`, with the versions of `tests/conformance/requirements-*.txt`, and knows nothing of mambad
but the URL. After each check the servers must be healthy, hold no slot or block, and have logged no error.

```sh
make conformance                                              # everything, installing what is not there
make conformance CONFORMANCE_ARGS="--only openai-3,lm-eval"   # some of it
make conformance CONFORMANCE_ARGS=--list
```

Debian has what pip has not: `nginx`, `prometheus` (for promtool), `nodejs` and `npm`. What is missing is
skipped, with a line; where `CI` is set that is an error. Results go to `build/conformance/results.json`, and
`tests/conformance/run.py --markdown FILE` makes this page of them.

| check | what it tries | version | cases | result | date |
|---|---|---|---|---|---|
"""


TAIL = """
"Cases" are what the second column names: functions of ours that use the client, requests that it made,
log-likelihoods that were compared, metric families that were linted. Versions of everything below each client
stand in `tests/conformance/locked-*.txt`; `run.py --lock` writes them anew.

## Where clients expect something else

- **lm-eval**: Transformers' softmax runs over every row of the output projection, rows of padding
  included; mambad knows only tokens that exist. The checkpoint of this check has no padding.
- **langchain-openai** raises `ContextOverflowError` when the text of an exception holds
  `context_length_exceeded`. openai 3 puts only the message there, and ours is vLLM's, which litellm looks
  for; so it raises `BadRequestError`, whose `code` is right.
- **litellm** takes `additionalProperties` and `strict` out of schemas for its provider `hosted_vllm`. A
  schema without `additionalProperties: false` lets the model add fields, and the demo model does so until
  `max_tokens`. For the provider `openai` schemas arrive as they were written. Tools need the package
  `mcp` besides.
- **instructor** and **langchain-openai** make such open schemas of classes, unless told otherwise:
  `extra="forbid"`, `strict=True`.
- **schemathesis** counts a 400 to a valid body as wrong. What JSON Schema can't say (a prompt fits the
  context, `min_tokens` is at most `max_tokens`, a template knows a role) is a 400 here, and
  `schemathesis.toml` allows it.
- **promtool** keeps colons for recording rules. vLLM's names have one, so the check reads
  `/metrics?compat=none`.
"""


def status(result: Result) -> str:
    """Return one word, and what belongs to it."""
    if result["skipped"]:
        return f"skipped: {_line(result['skipped'])}"
    if result["failures"]:
        return f"FAILED: {len(result['failures'])}"
    return f"passed{', ' + result['detail'] if result['detail'] else ''}"


def table(results: Sequence[Result]) -> str:
    """Return lines for a terminal."""
    rows = [("check", "version", "cases", "seconds", "result")]
    rows += [
        (each["name"], each["version"], str(each["cases"]), f"{each['seconds']:.0f}", status(each))
        for each in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)) for row in rows
    )


def markdown(results: Sequence[Result]) -> str:
    """Return the page."""
    lines = [
        f"| {each['name']} | {each['tries']} | {each['version']} | {each['cases']:,} | {status(each)} "
        f"| {each['date']} |"
        for each in results
    ]
    return HEAD + "\n".join(lines or ["| no results yet | | | | | |"]) + "\n" + TAIL


def _line(text: str) -> str:
    return " ".join(text.split())[:120].replace("|", "\\|")
