"""What the documentation names exists: links, flags, variables, series, paths, make targets, messages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from toy_process import serve
from toy_server import run_server

from mambad.server.vllm_flags import SWITCHES, WITH_VALUE

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMANDS = ("serve", "check", "complete", "chat", "bench serve", "bench offline", "collect-env", "version")
MIGRATING = ROOT / "docs/migrating.md"
OTHERS_FLAGS = {"--target", "--user", "--read-only", "--tmpfs", "--cap-drop", "--security-opt", "--build-arg"}
NOT_SETTINGS = {"MAMBAD_CONFIG", "MAMBAD_KERNELS", "MAMBAD_CPU_LEVEL", "MAMBAD_NAME"}


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Return every flag of every command."""
    found: set[str] = set()
    for command in COMMANDS:
        words = [sys.executable, "-m", "mambad", *command.split(), "--help"]
        page = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        found |= set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", page))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        where = (page.parent / name).resolve() if name else page
        assert where.exists(), target
        assert not anchor or anchor in anchors(where), target


def test_every_page_stands_in_the_index() -> None:
    index = text(ROOT / "docs/README.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name


def test_every_flag_that_mambad_is_said_to_have_exists(flags: set[str]) -> None:
    known = flags | SWITCHES | WITH_VALUE
    for page in PAGES:
        for line in text(page).splitlines():
            for command in re.findall(r"mambad (?:serve|check|bench \w+|complete|chat)\b[^`|#]*", line):
                assert set(re.findall(r"(?<=\s)--[a-z][\w-]*", command)) <= known, (page.name, line)


@pytest.mark.parametrize(
    "name", ["operations", "tuning", "troubleshooting", "security", "alerts", "quickstart", "reliability"]
)
def test_every_flag_of_the_pages_for_operators_exists(name: str, flags: set[str]) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text(ROOT / f"docs/{name}.md")))
    assert named - {"--extra-index-url"} <= flags


def test_the_right_column_for_vllm_names_flags_that_exist(flags: set[str]) -> None:
    section = text(MIGRATING).partition("## From vLLM")[2].partition("## From llama.cpp")[0]
    for row in re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE):
        if row[1].startswith("the same"):
            for flag in re.findall(r"--[a-z][\w-]*", row[0]):
                assert flag in flags, flag


def test_every_variable_exists(flags: set[str]) -> None:
    for page in PAGES:
        for name in set(re.findall(r"\bMAMBAD_[A-Z_]*[A-Z]\b", text(page))) - NOT_SETTINGS:
            flag = "--" + name.removeprefix("MAMBAD_").lower().replace("_", "-")
            deployed = any(name in text(file) for file in (ROOT / "deploy").rglob("*.yaml"))
            assert flag in flags or deployed, (page.name, name)


def test_every_series_and_path_exists() -> None:
    with run_server() as server, server.client() as client:
        series = set(re.findall(r"^# TYPE (\S+)", client.get("/metrics").text, re.MULTILINE))
        paths = {re.sub(r"\{.*?\}", "{id}", path) for path in client.get("/openapi.json").json()["paths"]}
    labelled = {"mambad_engine_info", "mambad_graph_replays_total"}
    for page in PAGES:
        for name in re.findall(
            r"\b((?:mambad|vllm)[_:][a-z_]+(?:_total|_seconds|_bytes|_slots|_blocks))\b", text(page)
        ):
            assert name in series | labelled or page.parent.name == "decisions", (page.name, name)
        for path in re.findall(r"(?<![\w.])/v1/[a-z_/]+[a-z]", text(page)):
            assert path in paths or any(known.startswith(path + "/") for known in paths), (page.name, path)


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text(page), re.MULTILINE):
            assert target in targets, (page.name, target)


def test_every_message_of_the_troubleshooting_page_is_in_the_source() -> None:
    files = [*ROOT.glob("server/**/*.py"), *ROOT.glob("engine/**/*.py"), ROOT / "deploy/preflight.sh"]
    source = " ".join(text(file) for file in files)
    table = text(ROOT / "docs/troubleshooting.md").partition("## It does not start")[2]
    quoted = [
        message
        for row in re.findall(r"^\| (.+?) \|$", table, re.MULTILINE)
        for message in re.findall(r"`([A-Za-z][^`]{14,})`", " ".join(row.split(" | ")[:2]))
        if " " in message
    ]
    assert len(quoted) > 12
    for message in quoted:
        assert message in source, message


def test_no_page_names_a_folder_of_somebody() -> None:
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(?:home|Users|root|work)/", text(page)), page.name


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md"])
def test_the_first_curl_is_answered(name: str) -> None:
    command = re.search(
        r"^curl (?:-N )?\S+/v1/completions .*?'$", text(ROOT / name), re.MULTILINE | re.DOTALL
    )
    assert command is not None
    with serve("demo", "--threads", "1", "--max-num-seqs", "2") as server:
        line = command[0].replace("http://127.0.0.1:8000", server.url).replace("\\\n", " ")
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=60)
    assert '"text"' in done.stdout
