"""Pages of the documentation, taken apart: links, tables, code spans, flags; and the texts of sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")])


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def page_of(name: str) -> str:
    return text(ROOT / f"docs/{name}.md")


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text(page), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def flags_in(words: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*[a-z0-9]", words))


def spans(words: str) -> list[str]:
    return re.findall(r"`([^`]+)`", words)


def rows(page: str, *titles: str) -> list[list[str]]:
    """Return the cells of the rows of every table whose header has these titles, by these columns only."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE):
        header, _, *lines = [
            [cell.strip() for cell in line[1:-1].split(" | ")] for line in table.splitlines()
        ]
        if set(titles) <= set(header):
            found += [[line[header.index(title)] for title in titles] for line in lines]
    assert found, titles
    return found


def texts_of(file: Path) -> Iterator[str]:
    """Yield the texts of a source file, as they are put together, with `…` for what is filled in."""
    if file.suffix != ".py":
        yield re.sub(r"\$\w+|\$\{[^}]*\}", "…", text(file))
        return
    for node in ast.walk(ast.parse(text(file))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
