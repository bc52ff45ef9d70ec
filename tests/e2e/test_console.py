"""The console in a headless Chromium, on a real server with the demo model.

Needs Debian's package `chromium`: without it the tests are skipped, but not where CI is set.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from toy_process import ServedProcess, serve

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
FLAGS = ("--threads", "1", "--max-num-seqs", "16", "--enable-fault-injection", "--log-level", "warning")
KEY = "console-test-key"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None and os.environ.get("CI"):
        pytest.fail("CI lacks chromium: is it in .ci/packages.txt?")
    if program is None:
        pytest.skip("the console is not tried: chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    with serve("demo", *FLAGS) as process:
        yield process


@pytest.fixture
def page(browser: Browser, served: ServedProcess) -> Iterator[Page]:
    """Yield the page; afterwards nothing red may be in the browser's console, and no request have left."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    red: list[str] = []
    page.on("console", lambda message: red.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: red.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(served.url)
    expect(page.locator("#status")).to_have_text("ready")
    expect(page.locator("#model")).to_have_value("demo")
    yield page
    context.close()
    assert red == []
    assert [url for url in asked if not url.startswith((served.url, "data:"))] == []


def eventually(holds: Callable[[], bool], timeout_s: float = 10) -> None:
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.05)


def running(served: ServedProcess) -> int:
    (engine,) = httpx.get(f"{served.url}/state?entries=0").json()["engines"]
    return int(engine["requests"]["running"])


def slow_down(served: ServedProcess, num_steps: int) -> None:
    """Let so many steps take 20 ms each, so that there is time to look."""
    order = {"name": "slow_step", "ms": 20, "times": num_steps}
    httpx.post(f"{served.url}/debug/faults", json=order).raise_for_status()


def test_a_completion_streams_and_is_the_answer_that_curl_gets(page: Page, served: ServedProcess) -> None:
    page.locator("[name=temperature]").fill("0")
    page.locator("[name=max_tokens]").fill("40")
    page.locator("#send").click()
    expect(page.locator("#finish")).to_have_text("length")
    expect(page.locator("#answer-tokens")).to_have_text("40")
    shown = page.locator("#output").text_content() or ""
    page.locator("summary").click()
    command = page.locator("#curl").text_content()
    assert command is not None
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=30)
    answer = httpx.Response(200, content=done.stdout).json()
    assert shown == "Now is the winter" + answer["choices"][0]["text"]


def test_stop_ends_the_request_in_the_engine(page: Page, served: ServedProcess) -> None:
    slow_down(served, 150)
    page.locator("[name=max_tokens]").fill("4000")
    page.locator("#send").click()
    eventually(lambda: running(served) == 1)
    expect(page.locator("#output .given")).to_have_text("Now is the winter")
    page.locator("#stop").click()
    expect(page.locator("#finish")).to_have_text("stopped")
    eventually(lambda: running(served) == 0)


def test_a_chat_keeps_its_turns(page: Page) -> None:
    page.get_by_label("Chat").check()
    page.locator("[name=max_tokens]").fill("12")
    for turn in (1, 2):
        page.locator("#prompt").fill(f"Who goes there, number {turn}?")
        page.locator("#prompt").press("Control+Enter")
        expect(page.locator("#send")).to_be_enabled()
        expect(page.locator("#output .who")).to_have_count(2 * turn)
    expect(page.locator("#error")).to_be_hidden()
    assert "number 1" in (page.locator("#curl").text_content() or "")


def test_what_the_server_refuses_is_shown(browser: Browser, served: ServedProcess) -> None:
    page = browser.new_page()
    page.goto(served.url)
    expect(page.locator("#model")).to_have_value("demo")
    page.locator("[name=temperature]").fill("hot")
    page.locator("#send").click()
    expect(page.locator("#error")).to_contain_text("temperature")
    page.close()


def test_hostile_text_is_shown_as_text(page: Page) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    page.locator("#prompt").fill(hostile)
    page.locator("[name=max_tokens]").fill("4")
    page.locator("#send").click()
    expect(page.locator("#output .given")).to_have_text(hostile)
    assert page.locator("#output img, #output script").count() == 0


def test_slots_change_their_colour_under_load_and_a_leaked_one_shows(
    page: Page, served: ServedProcess
) -> None:
    page.locator("#tab-live").click()
    expect(page.locator(".map .cell.free")).to_have_count(16)
    slow_down(served, 150)
    body = {"prompt": "Enter", "max_tokens": 3000, "ignore_eos": True, "n": 4, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body):
        expect(page.locator(".map .cell.active")).to_have_count(4)
        expect(page.locator("#running")).to_have_text("4")
        page.locator(".map").focus()
        expect(page.locator(".detail")).to_contain_text("slot 1: active for")
        page.locator(".map").press("ArrowRight")
        expect(page.locator(".detail")).to_contain_text("slot 2: active for")
    expect(page.locator(".map .cell.active")).to_have_count(0)
    leaked = page.locator("#memory tr", has_text="slots leaked").locator("td").nth(1)
    expect(leaked).to_have_text("0")
    httpx.post(f"{served.url}/debug/faults", json={"name": "leak_slot"}).raise_for_status()
    httpx.post(f"{served.url}/v1/completions", json={"prompt": "Exit", "max_tokens": 2}).raise_for_status()
    expect(leaked).to_have_text("1")


def test_a_leaked_slot_has_a_colour_and_a_letter(page: Page, served: ServedProcess) -> None:
    """The audit takes a leaked slot back within a second or two, so the report is replayed here."""

    def replay(route: Route) -> None:
        report = route.fetch().json()
        engine = report["engines"][0]
        engine["slots"] |= {"free": 14, "leaked": 1, "checkpoint": 1}
        entry = {"slot": 3, "generation": 7, "state": "leaked", "age_s": 61, "num_tokens": 9, "request": None}
        engine["entries"] = [entry, {**entry, "slot": 5, "state": "checkpoint", "request": "<b>x</b>"}]
        route.fulfill(json=report)

    page.route("**/state", replay)
    page.locator("#tab-live").click()
    expect(page.locator(".map .cell.leaked")).to_have_text("L")
    page.locator(".map .cell.leaked").hover()
    expect(page.locator(".detail")).to_contain_text("slot 3: leaked for 61.0 s, 9 tokens, nobody’s")
    page.locator(".map .cell.checkpoint").hover()
    expect(page.locator(".detail")).to_contain_text("request <b>x</b>")
    page.unroute_all(behavior="wait")


def test_light_and_dark_follow_the_system_and_the_button(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert dark != light
    page.locator("#theme").click()
    assert ground() == light


@pytest.mark.parametrize("view", ["play", "live"])
def test_nothing_scrolls_sideways_on_a_narrow_screen(page: Page, view: str) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    page.locator(f"#tab-{view}").click()
    expect(page.locator(f"#{view}")).to_be_visible()
    page.locator("#key").fill("x")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_key_is_asked_for_kept_for_the_session_and_used(browser: Browser) -> None:
    flags = ("--api-key", KEY, "--admin-api-key", "another", "--threads", "1", "--log-level", "error")
    with serve("demo", *flags) as served:
        page = browser.new_page()
        page.goto(served.url)
        expect(page.locator("#status")).to_have_text("a key is needed")
        page.locator("#key").fill(KEY)
        page.locator("#key").blur()
        expect(page.locator("#status")).to_have_text("ready")
        page.locator("#tab-live").click()
        expect(page.locator("#admin")).to_be_visible()
        page.locator("#key").fill("another")
        page.locator("#key").blur()
        expect(page.locator(".map .cell.free").first).to_be_visible()
        expect(page.locator("#admin")).to_be_hidden()
        page.reload()
        expect(page.locator("#key")).to_have_value("another")
        page.close()
