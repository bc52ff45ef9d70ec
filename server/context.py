"""What every handler shares: the engine, the tokenizer, the settings, and what counts and limits requests.

Made once by `create_app`; a handler gets it from its request.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import TypeVar

from starlette.requests import Request

from mambad.engine.messages import EngineInfo
from mambad.server.access import KeyRing
from mambad.server.body import BodyReader
from mambad.server.chat_convert import ChatConverter
from mambad.server.chat_prompt import ChatPrompter
from mambad.server.chat_template_files import ChatTemplates
from mambad.server.convert import Converter
from mambad.server.disconnect import disconnected, run_while
from mambad.server.engine_port import EnginePort
from mambad.server.grammar_check import GrammarChecker
from mambad.server.offload import INLINE_BYTES, Offload
from mambad.server.request_metrics import RequestMetrics
from mambad.server.response_convert import ResponseConverter
from mambad.server.response_desk import ResponseDesk
from mambad.server.response_store import MemoryStore, ResponseStore
from mambad.server.settings import AppSettings
from mambad.server.tokenizer import TextTokenizer

T = TypeVar("T")


@dataclass
class AppContext:
    """The parts of the application.

    Attributes:
        engine, text, settings: as given to `create_app`.
        api_keys, admin_keys: whose contents may be replaced while serving.
        templates: the model's chat templates.
        metrics: what requests are counted in.
        grammars: finds out whether grammars can be compiled.
        background: tasks that outlive their request by a moment.
        started_s: time since the epoch at which the server began.
    """

    engine: EnginePort
    text: TextTokenizer
    settings: AppSettings
    api_keys: KeyRing
    admin_keys: KeyRing
    templates: ChatTemplates = field(default_factory=ChatTemplates)
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    offload: Offload = field(default_factory=Offload)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    background: set[asyncio.Task[None]] = field(default_factory=set)
    started_s: float = field(default_factory=time.time)

    @cached_property
    def bodies(self) -> BodyReader:
        """Reads request bodies."""
        return BodyReader(self.settings.max_body_bytes)

    @cached_property
    def converter(self) -> Converter:
        """Makes plans of requests."""
        return Converter(self.text, self.settings)

    @cached_property
    def chats(self) -> ChatConverter:
        """Makes plans of requests for chats."""
        prompter = ChatPrompter(self.templates, self.settings)
        return ChatConverter(self.converter, prompter, self.text, self.settings)

    @cached_property
    def response_store(self) -> ResponseStore:
        """Keeps responses for later requests."""
        settings = self.settings
        return MemoryStore(settings.max_responses, settings.max_response_bytes, settings.response_ttl_s)

    @cached_property
    def responses(self) -> ResponseConverter:
        """Makes plans of requests for responses."""
        return ResponseConverter(self.converter, self.chats, self.response_store)

    @cached_property
    def response_desk(self) -> ResponseDesk:
        """Where responses are asked for by their id."""
        return ResponseDesk(self.response_store)

    @cached_property
    def version(self) -> str:
        """Version of this package."""
        return version("mambad")

    def fingerprint(self, info: EngineInfo) -> str:
        """Return `system_fingerprint`: changes when an answer may change for the same seed."""
        parts = (self.version, self.settings.model_name, info.family, info.dtype, info.device, info.kernels)
        return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"

    async def convert(self, request: Request, num_bytes: int, function: Callable[[], T]) -> T:
        """Run a conversion of `num_bytes`: small ones here, large ones in a thread while the client stays.

        Raises:
            ClientDisconnect: the client went before it was done.
        """
        work = self.offload.run(num_bytes, function)
        if num_bytes <= INLINE_BYTES:
            return await work
        return await run_while(work, disconnected(request.receive))


def context_of(request: Request) -> AppContext:
    """Return the context of the application that got a request."""
    context: AppContext = request.app.state.context
    return context
