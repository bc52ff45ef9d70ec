"""What is wrong with a request before it is one: heads without end, and bytes that are no HTTP."""

import json
import socket

import pytest
from toy_server import run_server


@pytest.fixture(scope="module")
def send():
    with run_server() as server:
        host, port = server.url.removeprefix("http://").split(":")

        def send(data):
            """Send bytes on a connection of their own; return all that comes back."""
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(data)
                chunks = []
                try:
                    while chunk := connection.recv(1 << 16):
                        chunks.append(chunk)
                except ConnectionResetError:
                    pass  # the server did not read all that was sent
                return b"".join(chunks)

        yield send


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nx: " + b"x" * 70_000,
        b"GET /" + b"x" * 70_000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"header-%d: x\r\n" % i for i in range(10_000)),
        b"GET / HTTP/1.1\r\nx: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
def test_a_head_that_is_too_large_is_431(send, data):
    head, _, body = send(data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"x-request-id: " in head
    assert json.loads(body)["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"\x16\x03\x01"]
)
def test_what_is_no_http_is_400_in_the_common_form(send, data):
    head, _, body = send(data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "bad_request"


def test_many_requests_on_one_connection_are_no_large_head(send):
    one = b"GET /live HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 1000 + b"\r\n\r\n"
    last = one.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert send(one * 100 + last).count(b"HTTP/1.1 200 OK") == 101


def test_an_old_client_is_answered(send):
    assert send(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
