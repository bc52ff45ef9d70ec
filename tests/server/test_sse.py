"""EventStream by itself: it always gives its work up, whoever goes first."""

import asyncio

from mambad.server.sse import ABORT_EXTENSION, DONE, KEEP_ALIVE, EventStream


class Client:
    """The other side of an ASGI connection.

    Args:
        takes: body messages that it takes before it stops reading.
        stays: whether it keeps the connection until the server drops it.
    """

    def __init__(self, takes=100, stays=True):
        self.takes = takes
        self.stays = stays
        self.sent = []
        self.dropped = asyncio.Event()

    async def receive(self):
        if self.stays:
            await self.dropped.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.body":
            if self.takes == 0:
                await asyncio.Event().wait()
            self.takes -= 1
        self.sent.append(message)

    @property
    def scope(self):
        return {"type": "http", "extensions": {ABORT_EXTENSION: self.dropped.set}}

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


def play(produce, *, keep_alive_s=0.0, stall_timeout_s=None, **client):
    """Send a stream to a client; return the client and how often the stream was closed."""
    closed = []

    async def run():
        other = Client(**client)
        stream = EventStream(produce, lambda: closed.append(1), keep_alive_s, stall_timeout_s)
        await asyncio.wait_for(stream(other.scope, other.receive, other.send), 5)
        assert len(asyncio.all_tasks()) == 1, "nothing is left running"
        return other

    return asyncio.run(run()), len(closed)


async def short(write):
    await write(b"data: 1\n\n")
    await write(DONE)


async def silent(write):
    await asyncio.Event().wait()


def test_a_stream_is_sent_and_closed():
    client, num_closed = play(short)
    assert client.sent[0]["status"] == 200
    assert client.body == b"data: 1\n\n" + DONE
    assert [message.get("more_body") for message in client.sent] == [None, True, True, False]
    assert num_closed == 1


def test_a_stream_is_closed_when_the_client_goes_before_it_began():
    started = []

    async def produce(write):
        started.append(1)
        await silent(write)

    async def run():
        closed = []
        stream = EventStream(produce, lambda: closed.append(1), 0.0, None)

        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            await asyncio.Event().wait()

        await asyncio.wait_for(stream({"type": "http"}, receive, send), 5)
        return closed

    assert asyncio.run(run()) == [1]
    assert started == []


def test_a_silent_stream_is_closed_when_the_client_goes():
    client, num_closed = play(silent, stays=False)
    assert (num_closed, client.dropped.is_set()) == (1, False)


def test_a_client_that_does_not_even_take_comments_is_dropped():
    client, num_closed = play(silent, takes=2, keep_alive_s=0.01, stall_timeout_s=0.05)
    assert client.body == KEEP_ALIVE * 2
    assert (num_closed, client.dropped.is_set()) == (1, True)


def test_a_client_that_takes_nothing_is_dropped_only_after_a_while():
    client, num_closed = play(short, takes=0, stall_timeout_s=0.1)
    assert client.body == b""
    assert (num_closed, client.dropped.is_set()) == (1, True)
