"""Load whose every answer is known: each stream is compared, byte for byte, with what one server said alone.

Used by the proofs that nothing is lost while servers are replaced or scaled. Runs in a thread of its own, so
that a test can do something to the servers meanwhile.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Question:
    """A request without `stream`, and the conversation that it belongs to."""

    path: str
    body: dict[str, Any]
    session: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.session is None else {"x-session-id": self.session}


@dataclass
class Outcome:
    """What became of a question: when, at whose hands, and what was wrong (nothing: empty)."""

    question: int
    started_s: float
    first_s: float = 0.0
    ended_s: float = 0.0
    replica: str = ""
    fault: str = ""


def questions(count: int, max_tokens: int, *, with_chats: bool, long_tokens: int = 0) -> list[Question]:
    """Return different questions: greedy and drawn, completions and chats, half of them of a conversation.

    Args:
        count: how many.
        max_tokens: of an answer, about.
        with_chats: whether a third are chats.
        long_tokens: of every fifth answer; 0 = as the others.
    """
    made = []
    for index in range(count):
        text = f"Scene {index}. " + "What news from the north, my lord? " * (index % 5)
        drawn = {"temperature": 0.8, "seed": index, "top_p": 0.95} if index % 2 else {"temperature": 0}
        length = long_tokens if long_tokens and index % 5 == 0 else max_tokens - index % 7
        body: dict[str, Any] = {"max_tokens": length, "ignore_eos": True, **drawn}
        session = f"conversation-{index}" if index % 4 < 2 else None
        if with_chats and index % 3 == 0:
            body["messages"] = [{"role": "user", "content": text}]
            made.append(Question("/v1/chat/completions", body, session))
        else:
            made.append(Question("/v1/completions", {**body, "prompt": text}, session))
    return made


def answers(url: str, asked: Sequence[Question]) -> list[str]:
    """Ask one server alone, without streaming; return the texts."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
        texts = []
        for question in asked:
            answer = client.post(question.path, json=question.body)
            assert answer.status_code == 200, answer.text
            choice = answer.json()["choices"][0]
            texts.append(choice["text"] if "text" in choice else choice["message"]["content"])
        return texts


@dataclass
class CheckedLoad:
    """Clients that ask, one question after the other, from entering the block until `finish`.

    Args:
        url: what to ask.
        asked, expected: questions, and the texts of their answers.
        num_clients: how many ask at the same time; changed by `resize`.
        pause_s: what each waits between two questions.
        replica_header: the response header that names who answered.
    """

    url: str
    asked: Sequence[Question]
    expected: Sequence[str]
    num_clients: int
    pause_s: float = 0.0
    replica_header: str = "x-served-by"
    outcomes: list[Outcome] = field(default_factory=list)
    num_running: int = 0

    def __post_init__(self) -> None:
        self._next = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "CheckedLoad":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: Any, __: TracebackType | None) -> None:
        self.finish(0)

    def resize(self, num_clients: int) -> None:
        """Have more or fewer clients from now on."""
        self.num_clients = num_clients

    def wait_for(self, num_outcomes: int, timeout_s: float = 300.0) -> None:
        """Wait until so many questions have been answered in all."""
        deadline = time.monotonic() + timeout_s
        while len(self.outcomes) < num_outcomes:
            assert time.monotonic() < deadline, f"{len(self.outcomes)} of {num_outcomes} answers came in time"
            assert self._thread.is_alive(), "the load has ended by itself"
            time.sleep(0.02)

    def finish(self, num_outcomes: int) -> list[Outcome]:
        """Wait for so many answers, ask nothing more, and return what became of every question."""
        try:
            self.wait_for(num_outcomes)
        finally:
            self._is_over.set()
            self._thread.join()
        return self.outcomes

    def faults(self) -> Counter[str]:
        """Return how often what was wrong."""
        return Counter(outcome.fault for outcome in self.outcomes if outcome.fault)

    async def _run(self) -> None:
        clients: dict[int, asyncio.Task[None]] = {}
        while not self._is_over.is_set():
            for number in range(self.num_clients):
                if number not in clients or clients[number].done():
                    clients[number] = asyncio.create_task(self._ask_on(number))
            await asyncio.sleep(0.05)
        for failure in await asyncio.gather(*clients.values(), return_exceptions=True):
            if failure is not None:
                raise failure

    async def _ask_on(self, number: int) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, trust_env=False) as client:
            while number < self.num_clients and not self._is_over.is_set():
                index, self._next = self._next % len(self.asked), self._next + 1
                self.num_running += 1
                self.outcomes.append(await self._ask(client, index))
                self.num_running -= 1
                await asyncio.sleep(self.pause_s)

    async def _ask(self, client: httpx.AsyncClient, index: int) -> Outcome:
        question, outcome = self.asked[index], Outcome(index, time.monotonic())
        body, data = {**question.body, "stream": True}, b""
        try:
            async with client.stream("POST", question.path, json=body, headers=question.headers) as answer:
                outcome.replica = answer.headers.get(self.replica_header, "")
                async for part in answer.aiter_raw():
                    outcome.first_s = outcome.first_s or time.monotonic()
                    data += part
            if answer.status_code != 200:
                outcome.fault = f"status {answer.status_code}: {data[:200]!r}"
            else:
                outcome.fault = fault_of(data, self.expected[index])
        except httpx.HTTPError as error:
            outcome.fault = f"{type(error).__name__}: {error}"
        outcome.ended_s = time.monotonic()
        return outcome


def fault_of(data: bytes, expected: str) -> str:
    """Say what is wrong with a stream of one choice; nothing: empty."""
    blocks = [block for block in data.decode().split("\n\n") if not block.startswith(":")]
    if blocks[-2:] != ["data: [DONE]", ""]:
        return "no [DONE] at the end"
    events = [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]
    errors = [event["error"] for event in events if "error" in event]
    if errors:
        return f"error event: {errors[0]['code']}"
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices
    )
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    if reasons != ["length"]:
        return f"finish reasons {reasons}"
    return "" if text == expected else f"wrong text: {text[:40]!r} for {expected[:40]!r}"
