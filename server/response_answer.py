"""A submitted response on its way: to its client, streamed or whole, and into the store.

Owns the record: kept when the response begins, if somebody may ask for it, and once more when it has ended,
in whatever way. A response that its client leaves is cancelled.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from starlette.responses import Response

from mambad.server.answers import json_answer
from mambad.server.choice import Delta
from mambad.server.detokenizer import make_detokenizer
from mambad.server.errors import CANCELLED, ApiError
from mambad.server.response_convert import ResponsePlan
from mambad.server.response_desk import ResponseDesk
from mambad.server.response_object import ENDED, ResponseEnd, ResponseHead, response_object
from mambad.server.response_output import Event, ResponseOutput
from mambad.server.response_store import ENTRY_BYTES, StoredResponse, TokenRun, item_bytes, packed_ids
from mambad.server.run_reader import RunReader
from mambad.server.sse import DONE, Write
from mambad.server.tokenizer import TextTokenizer

BEGINNING = ("created", "in_progress")


class ResponseAnswer:
    """Answers one request; see `serve_plan.Answer`.

    Args:
        plan, head: what is asked for, and what the response begins with.
        reader: reads the request's stream.
        output: makes its items.
        text: the model's tokenizer.
        desk: keeps its record.
    """

    def __init__(
        self,
        plan: ResponsePlan,
        head: ResponseHead,
        reader: RunReader,
        output: ResponseOutput,
        text: TextTokenizer,
        desk: ResponseDesk,
    ) -> None:
        self._plan = plan
        self._head = head
        self._reader = reader
        self._output = output
        self._text = text
        self._desk = desk
        self._num_events = 0
        self._body: dict[str, Any] | None = None  # once it has ended

    @property
    def reader(self) -> RunReader:
        """See Answer."""
        return self._reader

    async def whole(self) -> Response:
        """See Answer. What fails or is given up was never known to anybody, and leaves no record."""
        async with self._reader.reading() as batches:
            async for batch in batches:
                self._feed(batch)
        return json_answer(self._end(self._last_status()))

    async def stream(self, write: Write) -> None:
        """See Answer."""
        try:
            begun = self._begin("in_progress")
            await write(self._frames({"type": f"response.{name}", "response": begun} for name in BEGINNING))
            await self._write_events(write)
            ended = self._end(self._last_status())
            if ended["status"] == CANCELLED:  # after its last token was made
                raise ApiError(500, "The request was cancelled.", code=CANCELLED)
            ending = self._frames([{"type": f"response.{ended['status']}", "response": ended}])
        except Exception as exc:
            ending = self._frames(self._failed(self._reader.failure(exc)))
        await write(ending + DONE)

    def in_background(self, tasks: set[asyncio.Task[None]]) -> Response:
        """Let the response be made without a client; return what it is now.

        Args:
            tasks: keeps the work alive.
        """
        body = self._begin("in_progress" if self._reader.has_begun else "queued")
        task = asyncio.create_task(self._work())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return json_answer(body)

    def cancel(self, *, is_kept: bool = True) -> None:
        """End the response from this side, at once; `is_kept`: with a record of what it has come to."""
        self._end(CANCELLED, is_kept=is_kept)
        self._reader.cancel()

    def close(self) -> None:
        """See Answer."""
        self._reader.close()
        if self._desk.is_running(self._head.id):
            self._end(CANCELLED)

    async def _work(self) -> None:
        try:
            await self._reader.admitted()
            if self._desk.is_running(self._head.id):
                self._begin("in_progress")
            async with self._reader.reading() as batches:
                async for batch in batches:
                    self._feed(batch)
            self._end(self._last_status())
        except Exception as exc:
            self._failed(self._reader.failure(exc))
        finally:
            self.close()

    async def _write_events(self, write: Write) -> None:
        async with self._reader.reading() as batches:
            async for batch in batches:
                events = self._feed(batch)
                if events:
                    await write(self._frames(events))

    def _feed(self, batch: Sequence[tuple[int, Delta]]) -> list[Event]:
        """Take what has come; return what there is to tell."""
        events = [event for _, delta in batch for event in self._output.feed(delta)]
        if self._output.ends_in_calls and any(delta.finish_reason is not None for _, delta in batch):
            self._reader.count_calls(0)
        return events

    def _last_status(self) -> str:
        return "completed" if self._output.finish_reason == "stop" else "incomplete"

    def _begin(self, status: str) -> dict[str, Any]:
        """Keep the record of a response that is still being made."""
        body = response_object(self._head, status)
        if self._plan.is_stored:
            self._desk.begin(self._record(body), self.cancel)
        return body

    def _end(self, status: str, error: ApiError | None = None, *, is_kept: bool = True) -> dict[str, Any]:
        """Return the response as it has ended, and keep its record; only the first end counts."""
        if self._body is None:
            end = ResponseEnd(
                usage=self._reader.usage(),
                num_reasoning_tokens=self._output.num_reasoning_tokens,
                num_rewritten_tokens=self._plan.num_rewritten_tokens,
                error=error,
            )
            items = self._output.items if status in ENDED else self._output.cut()
            self._body = response_object(self._head, status, items, end)
            record = self._record(self._body) if self._plan.is_stored and is_kept else None
            self._desk.end(self._head.id, record)
        return self._body

    def _failed(self, error: ApiError) -> list[Event]:
        """End a response that has failed; return what there is to tell."""
        detail = error.body()["error"]
        told = {"type": "error", "code": error.code, "message": detail["message"], "param": error.param}
        events: list[Event] = [{**told, "error": detail}]
        if error.code == CANCELLED:
            self._end(CANCELLED)
            return events
        return [*events, {"type": "response.failed", "response": self._end("failed", error)}]

    def _record(self, body: dict[str, Any]) -> StoredResponse:
        """Return the record of a response as it is: with its conversation once it can be continued."""
        plan, output = self._plan, self._output
        num_bytes = len(orjson.dumps(body)) + ENTRY_BYTES
        if body["status"] not in ENDED:
            return StoredResponse(id=self._head.id, tenant=plan.tenant, body=body, num_bytes=num_bytes)
        num_item_bytes = plan.num_item_bytes + item_bytes(body["output"])
        prompt_ids, ids = plan.chat.completion.prompts[0].token_ids, output.token_ids
        is_stop_token = output.finish_reason == "stop" and not output.is_stop_string
        if is_stop_token and ids and ids[-1] in plan.stop_token_ids:
            ids = ids[:-1]
        detokenizer = make_detokenizer(self._text, prompt_ids)
        text = plan.prompt_hash.followed_by(detokenizer.push_all(ids) + detokenizer.flush())
        token_ids = plan.packed_prompt + packed_ids(ids)
        num_decoded = max(len(output.token_ids) - 1, 0)
        return StoredResponse(
            id=self._head.id,
            tenant=plan.tenant,
            body=body,
            items=(*plan.items, *body["output"]),
            token_ids=token_ids,
            num_chars=text.num_chars,
            text_digest=text.digest,
            runs=(TokenRun("prefill", len(prompt_ids)), TokenRun("decode", num_decoded)),
            num_item_bytes=num_item_bytes,
            num_bytes=num_bytes + num_item_bytes + len(token_ids),
        )

    def _frames(self, events: Iterable[Event]) -> bytes:
        """Frame events, each with its number."""
        frames = []
        for event in events:
            numbered = {"type": event["type"], "sequence_number": self._num_events, **event}
            self._num_events += 1
            frames.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(numbered)))
        return b"".join(frames)
