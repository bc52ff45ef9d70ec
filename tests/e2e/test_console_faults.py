"""The console when something goes wrong, or somebody does something else meanwhile. See test_console.py."""

import json
import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from toy_console import eventually, run_in_a_shell, running, slow_down
from toy_process import ServedProcess, serve

FLAGS = ("--threads", "1", "--max-num-seqs", "16", "--enable-fault-injection", "--log-level", "warning")
MADE = re.compile("length|stop$")  # whole, whichever way it ended
CHUNK = {"id": "x", "object": "chat.completion.chunk", "model": "demo", "created": 1}


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    with serve("demo", *FLAGS) as process:
        yield process


@pytest.fixture
def page(browser: Browser, served: ServedProcess) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.goto(served.url)
    expect(page.locator("#model")).to_have_value("demo")
    yield page
    page.close()


def open_chat(page: Page, max_tokens: int = 8) -> None:
    page.get_by_label("Chat").check()
    page.locator("[name=max_tokens]").fill(str(max_tokens))


def curl(page: Page) -> str:
    return page.locator("#curl").text_content() or ""


def frames(*deltas: dict[str, object]) -> str:
    """Return a stream of events: pieces of text, then an error."""
    return "".join(f"data: {json.dumps(each)}\n\n" for each in deltas)


def test_what_is_written_while_an_answer_streams_stays(page: Page, served: ServedProcess) -> None:
    slow_down(served, 30)
    open_chat(page, 20)
    page.locator("#prompt").fill("First")
    page.locator("#send").click()
    page.locator("#prompt").fill("Second")
    expect(page.locator("#finish")).to_have_text(MADE)
    expect(page.locator("#prompt")).to_have_value("Second")


def test_an_answer_that_broke_off_is_shown_but_not_sent_and_its_message_can_be_sent_again(page: Page) -> None:
    piece = CHUNK | {"choices": [{"index": 0, "delta": {"content": "partial"}, "finish_reason": None}]}
    body = frames(piece, {"error": {"message": "It broke.", "code": "engine_error"}})
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body)
    )
    open_chat(page)
    page.locator("#prompt").fill("First")
    page.locator("#send").click()
    expect(page.locator("#error")).to_have_text("It broke.")
    expect(page.locator("#output")).to_contain_text("partial")
    expect(page.locator("#output")).to_contain_text("not part of the conversation")
    expect(page.locator("#prompt")).to_have_value("First")
    assert "partial" not in curl(page)
    page.unroute("**/v1/chat/completions")
    page.locator("#send").click()
    expect(page.locator("#finish")).to_have_text(MADE)
    expect(page.locator("#output")).not_to_contain_text("partial")
    expect(page.locator("#output .who")).to_have_count(2)
    assert curl(page).count("First") == 1


def test_stop_before_the_first_token_leaves_no_turn(page: Page, served: ServedProcess) -> None:
    page.route("**/v1/chat/completions", lambda route: time.sleep(0.5))  # nothing comes
    open_chat(page)
    page.locator("#prompt").fill("First")
    page.locator("#send").click()
    page.locator("#stop").click()
    expect(page.locator("#finish")).to_have_text("stopped")
    expect(page.locator("#output .who")).to_have_count(0)
    expect(page.locator("#prompt")).to_have_value("First")


def test_a_long_prompt_is_no_longer_an_argument(page: Page) -> None:
    text = 'it\'s "$HOME" `id` \\n\n' * 8000
    # Typing so much takes the browser itself long.
    page.locator("#prompt").evaluate("(node, text) => { node.value = text }", text)
    page.locator("[name=max_tokens]").fill("2")
    assert "<<'END_OF_BODY'" in curl(page)
    answer = run_in_a_shell(curl(page))
    assert answer["error"]["code"] == "context_length_exceeded"
    page.locator("#prompt").fill("short")
    assert " -d '" in curl(page)


def test_figures_after_a_look_elsewhere_are_of_now(page: Page, served: ServedProcess) -> None:
    page.locator("#tab-live").click()
    expect(page.locator("#rate")).to_have_text("0")
    page.locator("#tab-play").click()
    page.locator("[name=max_tokens]").fill("600")
    page.locator("#send").click()
    expect(page.locator("#finish")).to_have_text(MADE, timeout=20_000)
    page.wait_for_timeout(4000)
    page.evaluate(
        "window.seen = []; new MutationObserver(() => seen.push(document.getElementById('rate').textContent))"
        ".observe(document.getElementById('rate'), {childList: true, characterData: true, subtree: true})"
    )
    page.locator("#tab-live").click()
    page.wait_for_timeout(2500)
    assert set(page.evaluate("window.seen")) <= {"–", "0"}


def test_focus_goes_from_send_to_stop_and_back(page: Page, served: ServedProcess) -> None:
    slow_down(served, 100)
    page.locator("[name=max_tokens]").fill("90")
    page.locator("#send").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#finish")).to_have_text("stopped")
    expect(page.locator("#send")).to_be_focused()


def test_keys_held_down_and_input_methods_send_and_stop_nothing(page: Page, served: ServedProcess) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    open_chat(page, 3)
    page.locator("#prompt").fill("Hold")
    page.locator("#prompt").focus()
    page.keyboard.down("Control")
    for _ in range(12):
        page.keyboard.down("Enter")  # all but the first of these are repeats
        page.wait_for_timeout(40)
    page.keyboard.up("Enter")
    page.keyboard.press("Enter")  # with nothing to send
    page.keyboard.up("Control")
    expect(page.locator("#finish")).to_have_text(MADE)
    assert sum(url.endswith("/v1/chat/completions") for url in asked) == 1
    slow_down(served, 60)
    page.locator("[name=max_tokens]").fill("50")
    page.locator("#prompt").fill("Compose")
    page.locator("#send").click()
    eventually(lambda: running(served) == 1)
    page.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', isComposing: true}))")
    expect(page.locator("#finish")).to_have_text(MADE)


def test_a_long_list_of_log_probabilities_says_what_it_leaves_out(page: Page) -> None:
    page.locator("[name=temperature]").fill("0")
    page.locator("[name=max_tokens]").fill("350")
    page.locator("[name=logprobs]").fill("1")
    page.locator("#send").click()
    expect(page.locator("#answer-tokens")).to_have_text("350")
    expect(page.locator("#tokens tbody tr")).to_have_count(300)
    expect(page.locator("#unlisted")).to_have_text("and 50 more tokens, which are not listed")


def refuse(route: Route) -> None:
    error = {
        "message": "Incorrect API key provided.",
        "type": "invalid_request_error",
        "code": "invalid_api_key",
    }
    route.fulfill(status=401, json={"error": error})


def test_a_key_that_is_refused_later_is_asked_for_again(page: Page) -> None:
    page.route("**/v1/completions", refuse)
    page.locator("#send").click()
    expect(page.locator("#error")).to_have_text("Incorrect API key provided.")
    expect(page.locator("#status")).to_have_text("a key is needed")
    expect(page.locator("#key-note")).to_be_visible()
    page.unroute("**/v1/completions")
    page.locator("#key").fill("another")
    page.locator("#key").press("Enter")
    expect(page.locator("#status")).to_have_text("ready")
    expect(page.locator("#key-note")).to_be_hidden()


def test_figures_that_are_refused_are_asked_for_once_and_the_map_all_the_same(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.route("**/metrics?*", refuse)
    page.locator("#tab-live").click()
    expect(page.locator(".map .cell.free").first).to_be_visible()
    page.wait_for_timeout(2500)
    assert sum("/metrics" in url for url in asked) == 1
    expect(page.locator("#live-error")).to_have_text("Incorrect API key provided.")


def test_a_late_answer_about_an_older_key_counts_no_more(browser: Browser, served: ServedProcess) -> None:
    page = browser.new_page()
    held: list[Route] = []
    page.route("**/v1/models", lambda route: route.continue_() if held else held.append(route))
    page.goto(served.url)
    eventually(lambda: page.wait_for_timeout(50) or len(held) == 1)
    page.locator("#key").fill("another")
    page.locator("#key").press("Enter")
    expect(page.locator("#status")).to_have_text("ready")
    refuse(held[0])
    page.wait_for_timeout(500)
    expect(page.locator("#status")).to_have_text("ready")
    expect(page.locator("#key-note")).to_be_hidden()
    page.close()


def test_a_key_that_no_header_can_hold_is_told_so(page: Page) -> None:
    page.locator("#key").fill("“quoted”")
    page.locator("#key").press("Enter")
    expect(page.locator("#key-note")).to_contain_text("ASCII only")
    page.wait_for_timeout(2500)
    expect(page.locator("#key-note")).to_be_visible()
    expect(page.locator("#status")).to_have_text("ready")
    page.locator("#key").fill("")
    page.locator("#key").press("Enter")
    expect(page.locator("#key-note")).to_be_hidden()


def test_the_administrators_key_alone_opens_the_page(browser: Browser) -> None:
    flags = ("--api-key", "one", "--admin-api-key", "two", "--threads", "1", "--log-level", "error")
    with serve("demo", *flags) as served:
        page = browser.new_page()
        page.goto(served.url + "/#live")
        expect(page.locator("#status")).to_have_text("a key is needed")
        page.locator("#admin-key").fill("two")
        page.locator("#admin-key").press("Enter")
        expect(page.locator(".map")).to_be_focused()
        expect(page.locator("#status")).to_have_text("ready")
        expect(page.locator("#key-note")).to_be_hidden()
        page.locator("#tab-play").click()
        expect(page.locator("#model")).to_have_value("demo")
        page.close()
