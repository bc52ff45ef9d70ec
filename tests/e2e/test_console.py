"""The console in a headless Chromium, on a real server with the demo model.

Needs Debian's package `chromium`: without it the tests are skipped, but not where CI is set.
"""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect
from toy_console import NAME, eventually, run_in_a_shell, running, slow_down
from toy_process import ServedProcess, serve

FLAGS = ("--threads", "1", "--max-num-seqs", "16", "--enable-fault-injection", "--log-level", "warning")
WATCH_POLICY = (
    "addEventListener('securitypolicyviolation', e => console.error('policy', e.violatedDirective));"
)
HOSTILE = '<img src=x onerror=alert(1)><script>alert(2)</script> it\'s "$HOME" `id` \\n'


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    with serve("demo", *FLAGS) as process:
        yield process


def watch(page: Page) -> tuple[list[str], list[str]]:
    """Return what turns red in the browser's console, and which addresses are asked, from now on."""
    red: list[str] = []
    asked: list[str] = []
    page.add_init_script(WATCH_POLICY)
    page.on("console", lambda message: red.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: red.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    return red, asked


@pytest.fixture
def page(browser: Browser, served: ServedProcess) -> Iterator[Page]:
    """Yield the page; afterwards nothing red may be in the browser's console, and no request have left."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=served.url)
    page = context.new_page()
    red, asked = watch(page)
    page.goto(served.url)
    expect(page.locator("#status")).to_have_text("ready")
    expect(page.locator("#model")).to_have_value("demo")
    yield page
    context.close()
    assert red == []
    assert [url for url in asked if not url.startswith(served.url)] == []


def replay(page: Page, slots: dict[str, int], entries: list[dict[str, Any]]) -> None:
    """Let `/state` tell of other slots than there are."""

    def answer(route: Route) -> None:
        report = route.fetch().json()
        report["engines"][0] |= {"slots": slots, "entries": entries}
        route.fulfill(json=report)

    page.route("**/state?*", answer)


def entry(slot: int, state: str, request: str | None = None) -> dict[str, Any]:
    return {
        "slot": slot,
        "generation": 7,
        "state": state,
        "age_s": 61,
        "num_tokens": 9,
        "request": request,
    }


def test_a_completion_streams_and_is_the_answer_that_curl_gets(page: Page, served: ServedProcess) -> None:
    page.locator("[name=temperature]").fill("0")
    page.locator("[name=max_tokens]").fill("40")
    page.locator("#send").click()
    expect(page.locator("#finish")).to_have_text("length")
    expect(page.locator("#answer-tokens")).to_have_text("40")
    expect(page.locator("#ttft")).to_contain_text("ms")
    assert float(page.locator("#speed").text_content() or "") > 0
    shown = page.locator("#output").text_content() or ""
    page.locator("#as-curl summary").click()
    page.locator("#copy").click()
    expect(page.locator("#copy")).to_have_text("Copied")
    answer = run_in_a_shell(page.evaluate("navigator.clipboard.readText()"))
    assert shown == "Now is the winter" + answer["choices"][0]["text"]


def test_the_answer_grows_while_it_is_made(page: Page, served: ServedProcess) -> None:
    slow_down(served, 100)
    page.locator("[name=max_tokens]").fill("80")
    page.locator("[name=seed]").fill("1")
    page.locator("#send").click()

    def length() -> int:
        return len(page.locator("#output").text_content() or "")

    eventually(lambda: length() > 25)
    assert page.locator("#output").get_attribute("aria-busy") == "true"
    before = length()
    eventually(lambda: length() > before + 20)
    assert page.locator("#stop").is_enabled()
    assert int(page.locator("#answer-tokens").text_content() or "") < 80
    page.keyboard.press("Escape")
    expect(page.locator("#finish")).to_have_text("stopped")


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
    page.locator("[name=system]").fill("Speak in verse.")
    page.locator("[name=max_tokens]").fill("12")
    for turn in (1, 2):
        page.locator("#prompt").fill(f"Who goes there, number {turn}?")
        page.locator("#prompt").press("Control+Enter")
        expect(page.locator("#send")).to_be_enabled()
        expect(page.locator("#output .who")).to_have_count(2 * turn)
    expect(page.locator("#error")).to_be_hidden()
    command = page.locator("#curl").text_content() or ""
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    assert [part.split('"')[0] for part in command.split('"role":"')[1:]] == roles
    page.locator("#clear").click()
    assert "number 1" not in (page.locator("#curl").text_content() or "")


@pytest.mark.parametrize("kind", ["Completion", "Chat"])
def test_log_probabilities_are_listed_for_each_token(page: Page, kind: str) -> None:
    page.get_by_label(kind).check()
    page.locator("#prompt").fill("O Romeo")
    page.locator("[name=temperature]").fill("0")
    page.locator("[name=max_tokens]").fill("5")
    page.locator("[name=logprobs]").fill("2")
    page.locator("#send").click()
    expect(page.locator("#answer-tokens")).to_have_text("5")
    rows = page.locator("#tokens tbody tr")
    expect(rows).to_have_count(5)
    shares = [float((row.locator("td").nth(1).text_content() or "").split()[0]) for row in rows.all()]
    assert all(0 < share <= 100 for share in shares)


def test_what_the_server_refuses_is_shown(browser: Browser, served: ServedProcess) -> None:
    page = browser.new_page()
    page.goto(served.url)
    expect(page.locator("#model")).to_have_value("demo")
    page.get_by_label("Chat").check()
    page.locator("[name=temperature]").fill("hot")
    page.locator("#send").click()
    expect(page.locator("#error")).to_contain_text("temperature")
    expect(page.locator("#output .who")).to_have_count(0)  # no turn that nobody answered
    page.close()


def test_hostile_text_is_shown_as_text_and_is_safe_in_a_shell(page: Page) -> None:
    page.locator("#prompt").fill(HOSTILE)
    page.locator("[name=max_tokens]").fill("4")
    page.locator("[name=temperature]").fill("0")
    page.locator("#send").click()
    expect(page.locator("#finish")).to_have_text("length")
    shown = page.locator("#output").text_content() or ""
    assert shown.startswith(HOSTILE)
    assert page.locator("#output img, #output script").count() == 0
    answer = run_in_a_shell(page.locator("#curl").text_content())
    assert HOSTILE + answer["choices"][0]["text"] == shown


def test_hostile_answers_are_shown_as_text(page: Page) -> None:
    chunk = httpx.Request("POST", "http://x", json={"choices": [{"text": HOSTILE, "finish_reason": "stop"}]})
    events = f"data: {chunk.content.decode()}\n\ndata: [DONE]\n\n"
    page.route(
        "**/v1/completions", lambda route: route.fulfill(body=events, content_type="text/event-stream")
    )
    page.locator("#send").click()
    expect(page.locator("#finish")).to_have_text("stop")
    assert (page.locator("#output").text_content() or "").endswith(HOSTILE)
    assert page.locator("#output img, #output script, #spoken img").count() == 0


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
        colours = page.eval_on_selector_all(
            ".map .cell.active, .map .cell.free", "all => all.map(c => getComputedStyle(c).backgroundColor)"
        )
        assert len(set(colours)) == 2
        expect(page.locator("#rate")).to_have_text(re.compile("^[1-9]"))
        assert "M" in (page.locator("#rate-line .trace").get_attribute("d") or "")
    expect(page.locator(".map .cell.active")).to_have_count(0)
    leaked = page.locator("#memory div", has_text="leaked slots, ever").locator("dd")
    expect(leaked).to_have_text("0")
    httpx.post(f"{served.url}/debug/faults", json={"name": "leak_slot"}).raise_for_status()
    httpx.post(f"{served.url}/v1/completions", json={"prompt": "Exit", "max_tokens": 2}).raise_for_status()
    expect(leaked).to_have_text("1")


def test_a_leaked_slot_has_a_colour_and_a_letter(page: Page) -> None:
    """The audit takes a leaked slot back within a second or two, so the report is replayed here."""
    entries = [entry(3, "leaked"), entry(5, "checkpoint", "<b>x</b>")]
    replay(page, {"free": 14, "leaked": 1, "checkpoint": 1}, entries)
    page.locator("#tab-live").click()
    expect(page.locator(".map .cell.leaked")).to_have_text("L")
    page.locator(".map .cell.leaked").hover()
    expect(page.locator(".detail")).to_contain_text("slot 3: leaked for 61.0 s, 9 tokens, nobody’s")
    page.locator(".map .cell.checkpoint").hover()
    expect(page.locator(".detail")).to_contain_text("request <b>x</b>")
    page.unroute_all(behavior="wait")


def test_thousands_of_slots_hide_none_that_matters(page: Page) -> None:
    """More slots than cells and entries: the leaked one shows, and what isn't listed isn't called free."""
    entries = [entry(slot, "active") for slot in range(1, 6000)] + [entry(9001, "leaked")]
    replay(page, {"free": 4000, "active": 15_999, "leaked": 1}, entries)
    page.locator("#tab-live").click()
    expect(page.locator(".map .cell.leaked")).to_have_count(1)
    assert page.locator(".map .cell").count() == 4000
    assert page.locator(".map .cell.unlisted").count() == 2199
    page.locator(".map .cell.leaked").hover()
    expect(page.locator(".detail")).to_contain_text("slot 9001 (of slots 9001 to 9005): leaked")
    page.unroute_all(behavior="wait")


def test_light_and_dark_follow_the_system_and_the_button(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert dark != light
    page.get_by_role("button", name="Switch to light").click()
    assert ground() == light
    page.reload()
    assert ground() == light


@pytest.mark.parametrize("view", ["play", "live"])
def test_nothing_scrolls_sideways_on_a_narrow_screen(page: Page, view: str) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    page.locator(f"#tab-{view}").click()
    expect(page.locator(f"#{view}")).to_be_visible()
    page.locator("#key").fill("x")
    for part in page.locator("details").all():
        part.evaluate("node => { node.open = true }")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.locator("#tab-play").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#live")).to_be_visible()
    expect(page.locator("#tab-live")).to_be_focused()
    expect(page.locator(".map .cell").first).to_be_visible()
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "map":
            break
    expect(page.locator(".map")).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator(".detail")).to_have_text("slot 16: free")


def test_health_is_shown(browser: Browser, served: ServedProcess) -> None:
    page = browser.new_page()
    body = {"status": "unavailable", "reason": "model_loading"}
    page.route("**/ready", lambda route: route.fulfill(status=503, json=body))
    page.goto(served.url)
    expect(page.locator("#status")).to_have_text("model loading")
    page.unroute("**/ready")
    page.route("**/ready", lambda route: route.abort())
    expect(page.locator("#status")).to_have_text("not reachable")
    page.close()


def test_keys_are_asked_for_kept_for_the_session_and_used_below_a_root_path(browser: Browser) -> None:
    """Also by a name that is not local, where browsers trust less."""
    flags = ("--api-key", "one", "--admin-api-key", "two", "--root-path", "/below", "--threads", "1")
    with serve("demo", *flags, "--log-level", "error") as served:
        page = browser.new_page()
        red, asked = watch(page)
        base = served.url.replace("127.0.0.1", NAME) + "/below/"
        page.goto(base)
        expect(page.locator("#status")).to_have_text("a key is needed")
        expect(page.locator("#key-note")).to_be_visible()
        page.locator("#key").fill("one")
        page.locator("#key").press("Enter")
        expect(page.locator("#status")).to_have_text("ready")
        expect(page.locator("#key-note")).to_be_hidden()
        expect(page.locator("#model")).to_have_value("demo")
        assert "Bearer $MAMBAD_API_KEY" in (page.locator("#curl").text_content() or "")
        page.locator("#tab-live").click()
        page.locator("#admin-key").fill("three")
        page.locator("#admin-key").press("Enter")
        expect(page.locator("#admin-says")).to_contain_text("not the administrator")
        num_asked = sum("/state" in url for url in asked)
        page.wait_for_timeout(2200)
        assert sum("/state" in url for url in asked) == num_asked  # refused once, not once a second
        page.locator("#admin-key").fill("two")
        page.locator("#admin-key").press("Enter")
        expect(page.locator(".map .cell.free").first).to_be_visible()
        expect(page.locator("#admin")).to_be_hidden()
        page.reload()
        expect(page.locator(".map .cell.free").first).to_be_visible()
        page.locator("#tab-play").click()
        page.locator("[name=max_tokens]").fill("3")
        page.locator("#send").click()
        expect(page.locator("#answer-tokens")).to_have_text("3")
        page.close()
    assert [url for url in asked if not url.startswith(base)] == []
    assert [text for text in red if "401" not in text] == []
