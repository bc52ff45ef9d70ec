"""The console's files over HTTP: headers, caching, and nothing but them."""

import re

import pytest
from toy_server import run_server

from mambad.server.console_files import FILES, FOLDER


def test_the_page_may_load_only_what_comes_from_the_server() -> None:
    with run_server() as server, server.client() as client:
        answer = client.get("/")
        policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"


def test_the_page_is_there_below_a_root_path() -> None:
    with run_server(root_path="/below") as server, server.client() as client:
        assert client.get("/below/").content == client.get("/").content == FILES["index.html"].body
        assert client.get("/below/console/main.js").status_code == 200


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
def test_a_known_version_is_not_sent_again(form: str) -> None:
    with run_server() as server, server.client() as client:
        tag = client.get("/").headers["etag"]
        again = client.get("/", headers={"if-none-match": form.format(tag)})
        other = client.get("/", headers={"if-none-match": '"other"'})
    assert again.status_code == 304
    assert again.headers["etag"] == tag
    assert again.headers["content-security-policy"] == other.headers["content-security-policy"]
    assert other.status_code == 200


def test_the_page_and_its_files_are_open_but_what_they_ask_for_is_not() -> None:
    with run_server(api_keys=("key",)) as server, server.client() as client:
        assert client.get("/").status_code == 200
        assert client.get("/v1/models").status_code == 401
        assert client.get("/state").status_code == 401


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_and_is_known_again_by_its_tag(name: str) -> None:
    with run_server(api_keys=("key",)) as server, server.client() as client:
        answer = client.get(f"/console/{name}")
        head = client.head(f"/console/{name}")
        again = client.get(f"/console/{name}", headers={"if-none-match": answer.headers["etag"]})
    assert answer.content == (FOLDER / name).read_bytes()
    assert head.status_code == 200
    assert head.headers["content-length"] == str(len(answer.content))
    assert head.content == again.content == b""
    assert again.status_code == 304


@pytest.mark.parametrize(
    "path",
    ["/console/", "/console/..%2fapp.py", "/console/../app.py", "/console/%2e%2e/app.py", "/console/x.js"],
)
def test_there_is_no_other_file(path: str) -> None:
    with run_server() as server, server.client() as client:
        assert client.get(path).status_code == 404


def test_without_the_console_there_is_nothing_at_the_root() -> None:
    with run_server(console=False) as server, server.client() as client:
        assert client.get("/").status_code == 404
        assert client.get("/console/main.js").status_code == 404


def test_the_files_name_no_other_server_and_hold_no_inline_code() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|[\"'(]//\w+\.\w+", text), path.name
        markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
        assert not re.search(markup, text), path.name
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=", page)
    assert not re.search(r"(src|href)=\"/", page)  # relative, for --root-path


def test_every_file_that_the_page_asks_for_is_one_of_these() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    asked = set(re.findall(r'(?:src|href)="console/([^"]+)"', page))
    for path in FOLDER.glob("*.js"):
        asked |= set(re.findall(r"from '\./([^']+)'", path.read_text(encoding="utf-8")))
    assert asked == set(FILES) - {"index.html"}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_texts_and_edges_stand_out_in_light_and_dark() -> None:
    """WCAG AA: 4.5 for text, 3 for edges of controls and for the colours of slots."""
    sheet = (FOLDER / "style.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root[^{]*\{([^}]*--ground[^}]*)\}", sheet)
    light, dark, chosen_dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks)
    assert dark == chosen_dark
    states = ("reserved", "active", "checkpoint", "quarantined", "leaked")
    texts = [(name, ground) for name in ("ink", "soft", "accent") for ground in ("panel", "ground")]
    texts += [("alarm", "panel"), ("alarm", "ground"), ("ink", "notice"), ("soft", "notice")]
    texts += [("on-accent", "accent"), *((("panel", state)) for state in states)]
    edges = [(name, "panel") for name in ("control", "free", *states)]
    for theme in (light, dark):
        poor = [(pair, contrast(theme[pair[0]], theme[pair[1]])) for pair in texts]
        assert [each for each in poor if each[1] < 4.5] == []
        poor = [(pair, contrast(theme[pair[0]], theme[pair[1]])) for pair in edges]
        assert [each for each in poor if each[1] < 3] == []
