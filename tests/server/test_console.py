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
    assert answer.headers["x-content-type-options"] == "nosniff"


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
        assert not re.search(r"https?://|//\w+\.\w+", text), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), (
            path.name
        )
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=", page)
