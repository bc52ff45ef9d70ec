"""Checks `protocol.pml` with spin: every search must hold, and every seeded bug must be found.

    python tests/model/check.py                        all searches and all seeded bugs (`make model-check`)
    python tests/model/check.py --short                two small searches, no seeded bug
    python tests/model/check.py liveness release-skipped    the searches and bugs of these names
    python tests/model/check.py --without-quarantine   the small search of a copy without the quarantine

The first also looks for lines of the model that no execution comes to.

Exit code 0: all as it should be. 1: a search found a violation, or did not find a seeded bug; without the
quarantine that is the right result. 2: a search could not be run, or ended before it had seen every state.
What spin made of a search, and the way to a violation, stay in a folder of its own under `--folder`.
"""

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("protocol.pml")
TOOLS = ("spin", os.environ.get("CC", "cc"))
MAX_TIME_S = 3600
"""A search that takes longer hangs; on an idle machine the longest takes two minutes."""
MAX_DEPTH = "-m1000000"


@dataclass(frozen=True, slots=True)
class Size:
    """The model's parameters, see protocol.pml."""

    ranks: int
    slots: int
    blocks: int
    requests: int
    has_urgent: bool = True
    comes_again: bool = False
    calls_apart: bool = False

    @property
    def flags(self) -> list[str]:
        return [
            f"-DRANKS={self.ranks}",
            f"-DSLOTS={self.slots}",
            f"-DBLOCKS={self.blocks}",
            f"-DREQUESTS={self.requests}",
            f"-DURGENT={self.has_urgent:d}",
            f"-DAGAIN={self.comes_again:d}",
            f"-DCALL_APART={self.calls_apart:d}",
        ]

    def __str__(self) -> str:
        return f"{self.ranks} × {self.slots} × {self.blocks} × {self.requests}"


@dataclass(frozen=True, slots=True)
class Search:
    """One run of spin.

    Attributes:
        name: also the name of its folder.
        size: of the model.
        claim: the liveness claim, or "" for a search of assertions and deadlocks.
        change: a seeded bug: this text of the model, and what stands there instead.
        expected: what the violation that must be found says; "" when none may be.
    """

    name: str
    size: Size
    claim: str = ""
    change: tuple[str, str] | None = None
    expected: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search gave. `violation` is "" if there is none; `problem` says why the search is no proof."""

    violation: str = ""
    problem: str = ""
    num_states: int = 0
    depth: int = 0
    memory_mib: float = 0.0
    cpu_s: float = 0.0


TINY, SMALL, TIGHT, FULL = Size(1, 1, 2, 2), Size(1, 2, 3, 3), Size(1, 2, 2, 3), Size(2, 2, 3, 3)
TWO_RANKS = Size(2, 1, 2, 1)
SHORT = [
    Search("short", SMALL),
    Search("short-liveness", TWO_RANKS, "everybody_ends"),
]
SEARCHES = [
    Search("safety", FULL),
    Search("safety-tight", Size(2, 2, 2, 3)),
    Search("liveness", FULL, "everybody_ends"),
    Search("liveness-tight", Size(1, 2, 2, 4), "everybody_ends"),
    Search("starvation", Size(1, 2, 3, 4, has_urgent=False, comes_again=True), "nobody_starves"),
    Search("starvation-tight", Size(1, 2, 2, 4, has_urgent=False, comes_again=True), "nobody_starves"),
]
WITHOUT_QUARANTINE = Search(
    "without-quarantine",
    TINY,
    change=("    :: IS_IN_FLIGHT(r) && my.step[j_].is_computing ->\n", "    :: false ->\n"),
    expected="slot_holder",
)
SEEDED_BUGS = [
    WITHOUT_QUARANTINE,
    Search(
        "table-row-not-cleared",
        SMALL,
        change=("    my.table[request[r].slot] = 0;\n    j_ =", "    j_ ="),
        expected="block_holder",
    ),
    Search(
        "padding-row-keeps-a-slot",
        SMALL,
        change=("my.step[my.num_steps].slot[row_] = 0\n", "my.step[my.num_steps].slot[row_] = 1\n"),
        expected="id_==0",
    ),
    Search(
        "reservation-not-rolled-back",
        SMALL,
        change=("put_back(BIT(request[r].slot), 0); request[r].slot = 0", "request[r].slot = 0"),
        expected="bits_==",
    ),
    Search(
        "released-without-being-held",
        SMALL,
        change=("    :: request[r].status == RUNNING -> leave(r)\n    :: else", "    :: true -> leave(r)"),
        expected="slot!=0",
    ),
    Search(
        "release-skipped",
        SMALL,
        change=("    :: request[r].status == RUNNING -> leave(r)\n", ""),
        expected="slot",
    ),
    Search(
        "preempted-in-flight",
        SMALL,
        change=("request[place_].is_yielding && !IS_IN_FLIGHT(place_)", "request[place_].is_yielding"),
        expected="num_computed<",
    ),
    Search(
        "state-not-copied-back",
        SMALL,
        change=("my.state[request[r].slot] = request[r].swapped;", "skip;"),
        expected="state_",
    ),
    Search(
        "calls-not-compared",
        TWO_RANKS,
        change=("rank[id_].has_work || rank[id_].num_heard != my.num_heard", "rank[id_].has_work"),
        expected="invalid end state",
    ),
    Search(
        "called-apart-from-the-request",
        Size(2, 1, 2, 1, calls_apart=True),
        expected="invalid end state",
    ),
    Search(
        "dummy-step-left-uncommitted",
        TWO_RANKS,
        "everybody_ends",
        change=("launch() };\n            goto complete", "launch() };\n            goto next_step"),
        expected="acceptance cycle",
    ),
    Search(
        "nobody-makes-room",
        Size(1, 2, 2, 2),
        "everybody_ends",
        change=("            make_room(r);\n", "            ok_ = 0;\n"),
        expected="acceptance cycle",
    ),
    Search(
        "newest-is-admitted-first",
        Size(1, 1, 2, 3, has_urgent=False, comes_again=True),
        "nobody_starves",
        change=("PLACE(r_) < PLACE(head_)", "PLACE(r_) > PLACE(head_)"),
        expected="acceptance cycle",
    ),
]  # fmt: skip


def build(folder: Path, text: str, size: Size, spin_options: Sequence[str], flags: Sequence[str]) -> str:
    """Have spin write a verifier of the model `text`, and compile it; return what went wrong, or ""."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MODEL.name).write_text(text, encoding="utf-8")
    spin, compiler = TOOLS
    commands = (
        [spin, "-a", *spin_options, *size.flags, MODEL.name],
        [compiler, "-w", *flags, "-o", "pan", "pan.c"],
    )
    for command in commands:
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            return f"{command[0]} failed: {made.stdout}{made.stderr}".strip()
    return ""


def run(search: Search, folder: Path, max_memory_mib: int) -> Outcome:
    """Build the verifier of a search and run it."""
    text = MODEL.read_text(encoding="utf-8")
    if search.change is not None:
        old, new = search.change
        assert text.count(old) == 1, f"{search.name}: its text stands {text.count(old)} times in the model"
        text = text.replace(old, new)
    is_large = search.size.ranks * search.size.slots > 2
    flags = [f"-DMEMLIM={max_memory_mib}", "-O3" if is_large else "-O0"]
    if search.claim:
        flags.append("-DNOBOUNDCHECK")  # the searches for safety check the bounds
        options = ["-a", "-f", "-N", search.claim]
    else:
        flags += ["-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE"]
        options = []
    options += [MAX_DEPTH, "-w25" if is_large else "-w20"]
    problem = build(folder, text, search.size, [], flags)
    if problem:
        return Outcome(problem=problem)
    before = os.times()
    try:
        done = subprocess.run(
            ["./pan", *options], cwd=folder, capture_output=True, text=True, check=False, timeout=MAX_TIME_S
        )
    except subprocess.TimeoutExpired:
        return Outcome(problem=f"not done after {MAX_TIME_S} s")
    after = os.times()
    (folder / "pan.out").write_text(done.stdout + done.stderr, encoding="utf-8")
    return read(done.stdout + done.stderr, sum(after[2:4]) - sum(before[2:4]))


def read(output: str, cpu_s: float) -> Outcome:
    """Return what the verifier's report says."""

    def number(pattern: str) -> float:
        found = re.search(pattern, output, re.MULTILINE)
        return float(found[1]) if found else 0.0

    violation = re.search(r"^pan:1: (.*) \(at depth \d+\)", output, re.MULTILINE)
    lost = re.search(
        r"^(?:pan: |error: )?(?:reached -DMEMLIM|max search depth too small|out of memory).*",
        output,
        re.MULTILINE,
    )
    problem = ""
    if lost:
        problem = lost[0]
    elif violation is None and "errors: 0" not in output:
        problem = f"the verifier ended without a result: {output[-400:]}"
    elif violation is None and "Search not completed" in output:
        problem = "the search was not completed"
    return Outcome(
        violation=violation[1] if violation else "",
        problem=problem,
        num_states=int(number(r"^\s*(\S+) states, stored")),
        depth=int(number(r"depth reached (\d+)")),
        memory_mib=number(r"^\s*(\S+)\s+total actual memory usage"),
        cpu_s=cpu_s,
    )


def dead_lines(folder: Path) -> list[str]:
    """Return the lines of the model that no execution comes to, at sizes that together come to all."""
    # spin looks at a d_step as a whole; as an atomic block it does the same, statement by statement.
    text = re.sub(r"\bd_step\b", "atomic", MODEL.read_text(encoding="utf-8"))
    all_lines: set[int] = set()
    reached_lines: set[int] = set()
    for index, size in enumerate((TIGHT, Size(2, 1, 2, 2))):
        place = folder / str(index)
        problem = build(place, text, size, ["-o3"], ["-O0", "-DSAFETY", "-DNOCLAIM"])
        if problem:
            return [problem]
        outputs = [
            subprocess.run(["./pan", *options], cwd=place, capture_output=True, text=True, check=False).stdout
            for options in (["-d"], [MAX_DEPTH])
        ]
        outcome = read(outputs[1], 0.0)
        if outcome.problem or outcome.violation:
            return [outcome.problem or outcome.violation]
        # An inline has states of its own wherever it is used; one that is reached is enough.
        states = set(re.findall(r"state +(\d+) .*\.pml:(\d+) =>", outputs[0].partition("proctype runner")[0]))
        report = outputs[1].partition("unreached in proctype engine")[2].partition("unreached in ")[0]
        dead = {(state, line) for line, state in re.findall(r"\.pml:(\d+), state (\d+),", report)}
        all_lines |= {int(line) for _, line in states}
        reached_lines |= {int(line) for _, line in states - dead}
    source = text.splitlines()
    return [f"line {line}: {source[line - 1].strip()}" for line in sorted(all_lines - reached_lines)]


def judge(search: Search, outcome: Outcome) -> tuple[int, str]:
    """Return the exit code that a search deserves, and its result in words."""
    if outcome.problem:
        return 2, f"NO PROOF: {outcome.problem}"
    if search.expected:
        if search.expected in outcome.violation:
            return 0, f"found: {outcome.violation}"
        return 1, f"NOT FOUND: {outcome.violation or 'no violation'}"
    return (1, f"VIOLATED: {outcome.violation}") if outcome.violation else (0, "holds")


def print_way(search: Search, folder: Path) -> None:
    """Print what the threads did before a violation."""
    command = [TOOLS[0], "-t", "-T", *search.size.flags, MODEL.name]
    trail = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    lines = [
        line.strip() for line in trail.splitlines() if re.match(r"\s*(rank \d|all ranks|<<<<<START)", line)
    ]
    print("  " + "\n  ".join(lines[-30:]))
    print(f"  in full: cd {folder} && {' '.join([*command[:2], '-p', '-g', *command[2:]])}")


def run_all(searches: Sequence[Search], folder: Path, max_memory_mib: int) -> int:
    """Run the searches, print a line each, and return the worst exit code."""
    print(f"{'search':<31}{'size*':<15}{'states':>11}{'depth':>8}{'MiB':>7}{'CPU s':>7}{'s':>7}  result")
    worst = 0
    for search in searches:
        start_s = time.monotonic()
        outcome = run(search, folder / search.name, max_memory_mib)
        wall_s = time.monotonic() - start_s
        code, result = judge(search, outcome)
        worst = max(worst, code)
        print(
            f"{search.name:<31}{search.size!s:<15}{outcome.num_states:>11,}{outcome.depth:>8,}"
            f"{outcome.memory_mib:>7,.0f}{outcome.cpu_s:>7.1f}{wall_s:>7.1f}  {result}",
            flush=True,
        )
        if outcome.violation and not search.expected:
            print_way(search, folder / search.name)
    print("* ranks × slots of a rank × blocks of a rank × requests; s: with building the verifier")
    return worst


def check_reached(folder: Path) -> int:
    """Print whether every line of the model is reached, and return the exit code."""
    dead = dead_lines(folder / "reached")
    print("\n  ".join(["no execution comes to:", *dead]) if dead else "every line of the engine is reached")
    return 2 if dead else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--short", action="store_true", help="two small searches")
    which.add_argument("--without-quarantine", action="store_true", help="the model without its quarantine")
    which.add_argument("names", nargs="*", default=[], help="searches and seeded bugs; all by default")
    parser.add_argument("--folder", type=Path, default=MODEL.parents[2] / "build" / "model")
    parser.add_argument("--max-memory-mib", type=int, default=4096)
    options = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        names = " and ".join(missing)
        print(f"error: no {names} here (Debian: apt-get install spin gcc libc6-dev)", file=sys.stderr)
        return 2
    if options.without_quarantine:
        searches = [dataclasses.replace(WITHOUT_QUARANTINE, expected="")]
    else:
        known = {search.name: search for search in SHORT + SEARCHES + SEEDED_BUGS}
        unknown = set(options.names) - known.keys()
        if unknown:
            parser.error(f"no search is called {', '.join(sorted(unknown))}")
        chosen = [known[name] for name in options.names]
        searches = SHORT if options.short else chosen or SEARCHES + SEEDED_BUGS
    code = run_all(searches, options.folder, options.max_memory_mib)
    is_everything = not (options.short or options.without_quarantine or options.names)
    return max(code, check_reached(options.folder)) if is_everything else code


if __name__ == "__main__":
    sys.exit(main())
