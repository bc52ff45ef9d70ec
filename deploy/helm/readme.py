"""Prints README.md of the chart: how to install it, and every value with what values.yaml says of it.

Reads values.yaml line by line, because comments are what it is after; writes nothing.
`python deploy/helm/readme.py > deploy/helm/mambad/README.md`
"""

import re
from collections.abc import Iterator
from pathlib import Path

VALUES = Path(__file__).with_name("mambad") / "values.yaml"
LINE = re.compile(r"(?P<indent> *)(?P<key>\w+):(?: (?P<value>.*?))??(?: *# (?P<comment>.*))?")
HEAD = """\
# mambad

An OpenAI-compatible server for language models whose layers carry a recurrent state: one model a release.
[docs/kubernetes.md](../../../docs/kubernetes.md) says how the parts play together. Kubernetes 1.29 or newer.

```sh
helm install demo deploy/helm/mambad -f deploy/helm/mambad/examples/cpu.yaml \\
  --set image.repository=REGISTRY/mambad
helm test demo
```

`examples/` holds values for a look (`cpu.yaml`) and for operation (`ha.yaml`). Unknown values, and those that
can't work together, are refused with what to do instead.

## Values

This table is made from `values.yaml` by `deploy/helm/readme.py`.

| value | default | |
|---|---|---|
"""


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, default and explanation of every key, in order; a parent without a comment is left out."""
    parents: list[tuple[int, str]] = []
    notes: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("# "):
            notes.append(line.strip().removeprefix("# "))
            continue
        match = LINE.fullmatch(line)
        if match is None:
            notes = []
            continue
        indent, value = len(match["indent"]), match["value"] or ""
        while parents and parents[-1][0] >= indent:
            parents.pop()
        parents.append((indent, match["key"]))
        note = " ".join([*notes, *([match["comment"]] if match["comment"] else [])])
        notes = []
        if value or note:
            yield ".".join(key for _, key in parents), value, note


def readme() -> str:
    """Return the whole page."""
    table = "".join(
        f"| `{path}` | {f'`{value}`' if value else ''} | {note.replace('|', chr(92) + '|')} |\n"
        for path, value, note in rows(VALUES.read_text(encoding="utf-8"))
    )
    return HEAD + table


if __name__ == "__main__":
    print(readme(), end="")
