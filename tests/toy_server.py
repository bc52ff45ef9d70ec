"""A fake engine, a byte-level tokenizer and a real HTTP server around them, for tests of the HTTP side.

The fake keeps AsyncEngine's contract (all or nothing, streams that merge, abort and finish_early) with a
script in place of a model: what it "generates" is a pure function of the submission.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mambad.engine.async_engine import EngineStatus
from mambad.engine.errors import (
    EngineDeadError,
    NotReadyError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
)
from mambad.engine.messages import EngineInfo
from mambad.engine.outputs import EngineStats, RequestOutput, RequestTimes, TokenLogprobs
from mambad.engine.request import Submission
from mambad.engine.stream import RequestStream
from mambad.server.app import create_app
from mambad.server.byte_table import byte_of_char
from mambad.server.chat_template import ChatTemplate
from mambad.server.chat_template_files import ChatTemplates
from mambad.server.context import AppContext
from mambad.server.protocol import HttpProtocol
from mambad.server.settings import AppSettings
from mambad.server.tokenizer import TextTokenizer

EOS = "<|endoftext|>"
EOS_ID = 0
FIRST_BYTE_ID = 1
Script = Callable[[Submission], Sequence[int]]


def byte_tokenizer(merges: Sequence[tuple[str, str]] = ()) -> TextTokenizer:
    """Return a tokenizer with id 1 + b for byte b, <|endoftext|> as id 0, and one more id a merge."""
    chars = sorted(byte_of_char().items(), key=lambda item: item[1])
    vocab = {EOS: EOS_ID, **{char: FIRST_BYTE_ID + byte for char, byte in chars}}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True, normalized=False)])
    return TextTokenizer(tokenizer, eos_token=EOS)


def byte_ids(text: str | bytes) -> list[int]:
    """Return one id a byte."""
    return [FIRST_BYTE_ID + byte for byte in (text.encode() if isinstance(text, str) else text)]


def says(text: str | bytes, *, ends: bool = True) -> Script:
    """Return a script that generates a text, then end-of-sequence; or the text over and over."""
    ids = byte_ids(text)
    return lambda submission: [*ids, EOS_ID] if ends else ids * (1 + submission.params.max_tokens // len(ids))


def counts_up(submission: Submission) -> list[int]:
    """A text that depends on prompt, seed and choice, and never ends by itself."""
    params = submission.params
    key = sum(submission.prompt_token_ids) + params.seed + 31 * params.prompt_index + 7 * params.choice_index
    return [FIRST_BYTE_ID + ord("a") + (key + i * i) % 26 for i in range(params.max_tokens)]


def toy_info(**changes: Any) -> EngineInfo:
    """Return what a small engine would report."""
    values: dict[str, Any] = {
        "model": "/models/toy",
        "family": "toy",
        "num_parameters": 1,
        "dtype": "float32",
        "state_dtype": "float32",
        "quantization": "none",
        "device": "cpu",
        "kernels": "fake",
        "vocab_size": 257,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "num_slots": 8,
        "num_blocks": 0,
        "block_size": 16,
        "slot_bytes": 1024,
        "block_bytes": 0,
        "weight_bytes": 1,
        "num_threads": 1,
        "runs_ahead": False,
        "eos_token_ids": (EOS_ID,),
        "load_duration_s": 0.5,
        "plan": (),
        "has_grammars": True,
    }
    return EngineInfo(**(values | changes))


class FakeEngine:
    """An engine without a model.

    Attributes:
        script: what to generate.
        step_s: time of a token.
        burst: tokens of one output.
        admits: whether requests begin at once; else they wait for their first token.
        max_requests: more than so many at once are refused.
        submissions, aborted, kept: everything submitted; reasons of aborts and tokens kept, by request id.
    """

    def __init__(
        self, script: Script = counts_up, *, info: EngineInfo | None = None, step_s: float = 0.0
    ) -> None:
        self.script = script
        self.step_s = step_s
        self.burst = 1
        self.admits = True
        self.max_requests = 1024
        self.info: EngineInfo | None = info or toy_info()
        self.status = EngineStatus("ready", "", time.time())
        self.refuses_new = False
        self.submissions: list[Submission] = []
        self.aborted: dict[str, str] = {}
        self.injected: list[tuple[str, int, int, int]] = []
        self.kept: dict[str, int] = {}
        self.num_finished: dict[str, int] = {}
        self._streams: dict[str, RequestStream] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def stats(self) -> tuple[EngineStats, ...]:
        """One report, whose slots add up."""
        capacity = self.info.num_slots if self.info else 0
        active = min(self.num_running, capacity)
        report = EngineStats(
            slots={"active": active, "free": capacity - active},
            slot_capacity=capacity,
            num_running=active,
            num_waiting=self.num_running - active,
            finished=dict(self.num_finished),
        )
        return (report,)

    def submit(self, submissions: Sequence[Submission], rank: int | None = None) -> list[RequestStream]:
        """See AsyncEngine."""
        if rank:
            raise RequestError(f"there is no rank {rank}")
        if self.status.phase == "dead":
            raise EngineDeadError(self.status.reason)
        if self.refuses_new or self.info is None:
            raise NotReadyError("not now", code="draining" if self.refuses_new else "model_loading")
        for submission in submissions:
            num_tokens = len(submission.prompt_token_ids)
            if num_tokens + min(submission.params.max_tokens, 1) > self.info.max_model_len:
                raise PromptTooLongError(num_tokens, self.info.max_model_len)
        if len(self._streams) + len(submissions) > self.max_requests:
            raise QueueFullError("too many requests")
        return [self._open(submission) for submission in submissions]

    async def state_reports(self, **options: Any) -> list[dict[str, Any]]:
        """See AsyncEngine."""
        is_stale = self.status.phase == "dead"
        return [{"engine": 0, "slots": dict(self.stats[0].slots), "options": options, "stale": is_stale}]

    async def inject(self, name: str, times: int, duration_ms: int, rank: int) -> bool | None:
        """See AsyncEngine."""
        self.injected.append((name, times, duration_ms, rank))
        return True

    def cancel(self, is_meant: Callable[[str], bool]) -> int:
        """See AsyncEngine."""
        meant = [stream for request_id, stream in self._streams.items() if is_meant(request_id)]
        for stream in meant:
            stream.cancel()
        return len(meant)

    def die(self, reason: str = "the engine process ended with code -9") -> None:
        """Be gone, as after a crash. On the event loop's thread."""
        self.status = EngineStatus("dead", reason, time.time())
        for request_id, stream in list(self._streams.items()):
            stream.fail(EngineDeadError(reason))
            self._end(request_id, "error")

    def end_all(self, reason: str, error: str, error_code: str | None = None) -> None:
        """End every request with a reason of the engine's own. On the event loop's thread."""
        for request_id, stream in list(self._streams.items()):
            output = RequestOutput(request_id, finish_reason=reason, error=error, error_code=error_code)
            stream.deliver(output)
            self._end(request_id, reason)

    def _open(self, submission: Submission) -> RequestStream:
        request_id = submission.request_id
        assert request_id not in self._streams, "request ids are unique"
        stream = RequestStream(
            request_id,
            lambda reason: self._abort(request_id, reason),
            lambda num_kept: self._finish_early(request_id, num_kept),
        )
        if self.admits:
            stream.deliver(RequestOutput(request_id))  # what the engine says when a request has its slot
        self.submissions.append(submission)
        self._streams[request_id] = stream
        self._tasks[request_id] = asyncio.get_running_loop().create_task(self._generate(submission, stream))
        return stream

    def _abort(self, request_id: str, reason: str) -> None:
        if request_id in self._streams:
            self.aborted[request_id] = reason
            self._end(request_id, reason)

    def _finish_early(self, request_id: str, num_kept: int) -> None:
        if request_id in self._streams:
            self.kept[request_id] = num_kept
            self._streams[request_id].deliver(_last(request_id, "stop"))
            self._end(request_id, "stop")

    def _end(self, request_id: str, reason: str) -> None:
        self.num_finished[reason] = self.num_finished.get(reason, 0) + 1
        del self._streams[request_id]
        task = self._tasks.pop(request_id)
        if task is not asyncio.current_task():
            task.cancel()

    async def _generate(self, submission: Submission, stream: RequestStream) -> None:
        request_id, params = submission.request_id, submission.params
        await self._score_prompt(submission, stream)
        ids = list(self.script(submission))[: params.max_tokens]
        for end, token_id in enumerate(ids, 1):
            is_eos = token_id == EOS_ID and not params.ignore_eos
            if end > params.min_tokens and (is_eos or token_id in params.stop_token_ids):
                ids = ids[:end]
                break
        reason = "stop" if ids and ends_by_itself(ids[-1], params) else "length"
        for start in range(0, len(ids), self.burst):
            await asyncio.sleep(self.step_s)
            part = ids[start : start + self.burst]
            logprobs = tuple(fake_logprobs(i, params.num_logprobs) for i in part if params.num_logprobs >= 0)
            is_last = start + self.burst >= len(ids)
            stop_id = part[-1] if is_last and part[-1] in params.stop_token_ids else None
            output = RequestOutput(request_id, tuple(part), logprobs, stop_token_id=stop_id)
            stream.deliver(_last(request_id, reason, output) if is_last else output)
        if not ids:
            stream.deliver(_last(request_id, reason))
        self._end(request_id, reason)

    async def _score_prompt(self, submission: Submission, stream: RequestStream) -> None:
        count, ids = submission.params.num_prompt_logprobs, submission.prompt_token_ids
        if count < 0:
            return
        for start in range(0, len(ids), 4):
            await asyncio.sleep(0)
            entries = [fake_logprobs(token_id, count) for token_id in ids[start : start + 4]]
            if start == 0:
                entries[0] = TokenLogprobs(ids[0], None)
            stream.deliver(RequestOutput(submission.request_id, prompt_logprobs=tuple(entries)))


def ends_by_itself(token_id: int, params: Any) -> bool:
    """Whether this token ends a request."""
    return (token_id == EOS_ID and not params.ignore_eos) or token_id in params.stop_token_ids


def fake_logprobs(token_id: int, count: int) -> TokenLogprobs:
    """Return log-probabilities that depend on the token alone; the chosen one need not be among the top."""
    top = tuple((FIRST_BYTE_ID + ord("a") + i, -0.5 - i) for i in range(count))
    return TokenLogprobs(token_id, dict(top).get(token_id, -1.25), top)


def _last(request_id: str, reason: str, output: RequestOutput | None = None) -> RequestOutput:
    base = output or RequestOutput(request_id)
    times = RequestTimes(0.01, 0.02, 0.03)
    return RequestOutput(
        request_id, base.token_ids, base.logprobs, (), reason, base.stop_token_id, 0, None, None, times
    )


@dataclass
class RunningServer:
    """A server in a thread.

    Attributes:
        url: of its root.
        engine: the fake behind it; to be touched through `call` only, or while nothing runs.
        context: of the application; likewise.
    """

    url: str
    engine: FakeEngine
    loop: asyncio.AbstractEventLoop
    context: AppContext

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the server's event loop and return its result."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(5)

    def client(self, **options: Any) -> httpx.Client:
        """Return an HTTP client; also a context manager."""
        return httpx.Client(base_url=self.url, timeout=10, trust_env=False, **options)


@contextlib.contextmanager
def run_server(
    engine: FakeEngine | None = None,
    text: TextTokenizer | None = None,
    *,
    send_buffer_bytes: int | None = None,
    template: str | None = None,
    wrap: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Iterator[RunningServer]:
    """Serve on a free port until the block ends.

    Args:
        engine: default: one that counts up.
        text: default: bytes.
        send_buffer_bytes: of the kernel, for each connection.
        template: of chats; None = a base model.
        wrap: makes what is served of the application.
        settings: fields of AppSettings.
    """
    engine = engine or FakeEngine()
    settings.setdefault("served_model_names", ("toy", "org/toy"))
    by_name = {} if template is None else {"default": ChatTemplate(template)}
    templates = ChatTemplates(by_name, {"eos_token": EOS})
    app = create_app(engine, text or byte_tokenizer(), AppSettings(**settings), templates)
    sock = socket.create_server(("127.0.0.1", 0))
    if send_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    config = uvicorn.Config(
        app if wrap is None else wrap(app),
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve([sock])

    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    thread = threading.Thread(target=lambda: runner.run(serve()))
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        yield RunningServer(url, engine, loops[0], app.state.context)
    finally:
        server.should_exit = True
        thread.join(10)
        runner.close()
        sock.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait until a condition holds, or fail."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)
