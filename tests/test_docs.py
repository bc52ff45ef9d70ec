"""What the documentation names exists: links, flags, variables, series, paths, fields, messages, figures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, anchors, flags_in, page_of, prose, rows, spans, text, texts_of
from toy_process import serve
from toy_server import run_server

from mambad.server.config_sources import OTHER_VARIABLES
from mambad.server.schemas.chat import ChatRequest
from mambad.server.schemas.common import UNSUPPORTED_FIELDS
from mambad.server.schemas.completions import CompletionRequest
from mambad.server.vllm_flags import SWITCHES, WITH_VALUE

COMMANDS = ("serve", "check", "complete", "chat", "bench serve", "bench offline", "collect-env", "version")
OPERATOR_PAGES = (
    *("alerts", "api", "chat", "console", "migrating", "observability", "operations", "quickstart"),
    *("reliability", "responses", "scaling", "security", "slot-life", "troubleshooting", "tuning"),
)
OTHERS_FLAGS = {"--extra-index-url"}
NO_PATHS = {"/dev/null", "/etc/mambad", "/tmp", "/x/"}
"""Files, and an example of a proxy's path."""
OPTIONAL_SERIES = {"mambad_engine_info", "mambad_graph_replays_total", "vllm:cache_config_info"}
"""Missing from a scrape of the toy engine, which has no kernels."""


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Return every flag of every command."""
    found: set[str] = set()
    for command in COMMANDS:
        words = [sys.executable, "-m", "mambad", *command.split(), "--help"]
        found |= flags_in(
            subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        )
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        where = (page.parent / name).resolve() if name else page
        assert where.exists(), target
        assert not anchor or anchor in anchors(where), target


def test_every_page_stands_in_the_index_and_is_short() -> None:
    index = page_of("README")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
        assert page.name == "performance.md" or len(text(page).splitlines()) < 200, page.name


# ---- flags and variables ----------------------------------------------------------------------------------


def test_every_flag_that_mambad_is_said_to_have_exists(flags: set[str]) -> None:
    for page in PAGES:
        for line in text(page).splitlines():
            for command in re.findall(r"mambad (?:serve|check|bench \w+|complete|chat)\b[^`|#]*", line):
                assert flags_in(command) <= flags, (page.name, line)


@pytest.mark.parametrize("name", [name for name in OPERATOR_PAGES if name != "migrating"])
def test_every_flag_of_the_pages_for_operators_exists(name: str, flags: set[str]) -> None:
    of_vllm = SWITCHES | WITH_VALUE if name == "api" else set()
    assert flags_in(page_of(name)) - OTHERS_FLAGS - of_vllm <= flags


@pytest.mark.parametrize("other", ["vLLM", "llama-server"])
def test_what_a_flag_becomes_exists(other: str, flags: set[str]) -> None:
    for theirs, ours in rows(page_of("migrating"), other, "mambad"):
        assert flags_in(ours) <= flags, ours
        if ours.startswith("the same"):
            assert flags_in(theirs) <= flags, theirs


def test_what_is_passed_over_is_and_what_ends_the_start_does(flags: set[str]) -> None:
    page = page_of("migrating")
    passed_over = page.partition("Passed over")[2].partition("\n\n")[0]
    assert len(flags_in(passed_over)) > 5
    assert flags_in(passed_over) <= SWITCHES | WITH_VALUE
    left_out = page.partition("Leave out;")[2].partition("\n\n")[0]
    assert len(flags_in(left_out)) > 5
    assert not flags_in(left_out) & (flags | SWITCHES | WITH_VALUE)


def test_every_variable_exists(flags: set[str]) -> None:
    deployed = " ".join(
        text(file) for file in (ROOT / "deploy").rglob("*") if file.suffix in (".yaml", ".tpl", ".cfg")
    )
    for page in PAGES:
        for name in set(re.findall(r"\bMAMBAD_[A-Z_]*[A-Z]\b", text(page))) - set(OTHER_VARIABLES):
            flag = "--" + name.removeprefix("MAMBAD_").lower().replace("_", "-")
            assert flag in flags or name in deployed, (page.name, name)


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text(page), re.MULTILINE):
            assert target in targets, (page.name, target)


# ---- what a server shows ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> tuple[set[str], set[str]]:
    """Return the series and the paths of a server."""
    with run_server() as server, server.client() as client:
        series = set(re.findall(r"^(?:# TYPE )?([a-z][\w:]+)", client.get("/metrics").text, re.MULTILINE))
        paths = {re.sub(r"\{.*?\}", "{id}", path) for path in client.get("/openapi.json").json()["paths"]}
    return series | OPTIONAL_SERIES, paths | {"/docs", "/openapi.json", "/debug/faults", "/", "/v1"}


def test_every_series_exists(shown: tuple[set[str], set[str]]) -> None:
    for page in PAGES:
        if page.parent.name == "decisions":
            continue  # may name what was not taken
        for name in re.findall(
            r"(?<![\w.:/-])((?:mambad_|vllm:)[a-z0-9_]*[a-z0-9])(?![\w:*]|\.\w|/)", text(page)
        ):
            assert name in shown[0], (page.name, name)


def test_every_path_exists(shown: tuple[set[str], set[str]]) -> None:
    for page in PAGES:
        for path in re.findall(r"(?<![\w.])/v1/[a-z_/]+[a-z]", text(page)):
            assert path in shown[1], (page.name, path)
    for name in OPERATOR_PAGES:
        page = page_of(name)
        if name == "migrating":
            page = " ".join(ours for _, ours in rows(page, "path of llama-server", "here"))
        named = re.findall(r"`(?:(?:GET|POST|DELETE|HEAD) )?(/[a-z_]*[a-z_/]*(?:\{id\})?)[?`]", page)
        named += re.findall(r"http://127\.0\.0\.1:8000(/[a-z0-9_/]+)", page)
        for path in named:
            assert path in shown[1] | NO_PATHS, (name, path)


def test_fields_of_others_are_taken_or_refused_as_the_page_says() -> None:
    ours = set(CompletionRequest.model_fields) | set(ChatRequest.model_fields)
    page = page_of("migrating")
    for theirs, here in rows(page, "field", "here") + rows(page, "field of llama-server", "here"):
        if here.startswith("the same"):
            assert set(spans(theirs)) <= ours, theirs
        elif here.startswith("400"):
            assert set(spans(theirs)) <= set(UNSUPPORTED_FIELDS), theirs
        elif here == "not known":
            assert not set(spans(theirs)) & (ours | set(UNSUPPORTED_FIELDS)), theirs
        elif len(spans(here)) == 1:
            assert spans(here)[0] in ours, here


# ---- words and figures ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source() -> str:
    """Return all texts of the program."""
    files = [*ROOT.glob("server/**/*.py"), *ROOT.glob("engine/**/*.py"), ROOT / "deploy/preflight.sh"]
    return re.sub(r"`…`|'…'|…%|%[sd]", "…", "\n".join(one for file in files for one in texts_of(file)))


def test_every_quoted_message_is_in_the_source(source: str) -> None:
    quoted = [span for (cell,) in rows(page_of("troubleshooting"), "says") for span in spans(cell)]
    assert len(quoted) > 40
    for message in quoted:
        assert len(message.strip("… ")) > 8, message
        assert message.rstrip("…") in source, message


def test_codes_of_errors_are_in_the_source(source: str) -> None:
    codes = [span for (cell,) in rows(page_of("troubleshooting"), "status, code") for span in spans(cell)]
    assert len(codes) > 12
    for code in codes:
        assert code.startswith("/") or f"\n{code}\n" in source, code


def test_the_plan_of_the_demo_model_is_the_one_that_is_printed() -> None:
    words = [
        sys.executable,
        "-m",
        "mambad",
        "check",
        "--max-num-seqs",
        "64",
        "--kv-cache-memory-bytes",
        "1GiB",
    ]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    for name in ("memory", "slots", "blocks", "length"):
        (line,) = re.findall(rf"^{name} +\d.*|^{name} +weights.*", page_of("tuning"), re.MULTILINE)
        assert line in printed


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
