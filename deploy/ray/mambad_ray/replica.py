"""One mambad server as a Ray Serve replica: the application in this process, its engine in a child.

Serve owns HTTP, routing and the number of replicas; a replica answers one ASGI request a call, message by
message. What a client sees (statuses, streams, errors, limits) is mambad's own.
"""

import asyncio
import os
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import anyio
from ray import serve

from mambad.engine.async_engine import AsyncEngine
from mambad.engine.logs import set_up_logging
from mambad.server.app import create_app
from mambad.server.chat_template_files import load_chat_templates
from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS, ServerConfig
from mambad.server.config_parts import app_settings, engine_config, queue_limits
from mambad.server.config_sources import load_config
from mambad.server.model_source import find_model
from mambad.server.tokenizer_files import load_tokenizer

BUFFERED_MESSAGES = 16
ENGINE_EXIT_S = 5.0
REPLICA_HEADER = b"x-served-by"
Message = dict[str, Any]


def read_config(flags: list[str]) -> ServerConfig:
    """Return the settings of `mambad serve FLAGS`, with this process's `MAMBAD_*` variables."""
    arguments, file = parse_settings("serve", "", FLAGS, flags)
    return load_config(arguments, os.environ, file).config


class Replica:
    """Answers requests; ready when its constructor has returned.

    Args:
        flags: as behind `mambad serve`. Host, port and TLS are Serve's, and mean nothing here.
    """

    async def __init__(self, flags: list[str]) -> None:
        config = read_config(flags)
        set_up_logging(config.log_level, config.log_format)
        source = find_model(config)
        folder = source.tokenizer_folder
        self._engine = AsyncEngine(engine_config(config, source), queue_limits(config))
        self._app = create_app(
            self._engine,
            load_tokenizer(folder),
            app_settings(config, source, is_loopback=False),
            load_chat_templates(folder, config.chat_template),
        )
        self._name = serve.get_replica_context().replica_id.unique_id.encode()
        await self._engine.start()
        info = await self._engine.wait_ready()
        self._num_slots = info.max_num_seqs * len(self._engine.ranks)

    async def answer(self, key: str | None, scope: Message, body: bytes) -> AsyncIterator[Message]:
        """Yield the ASGI messages that answer a request.

        Args:
            key: for the router, which has used it.
            scope: the request's ASGI scope.
            body: all of it.
        """
        sender, receiver = anyio.create_memory_object_stream[Message](BUFFERED_MESSAGES)
        inbox = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            message = next(inbox, None)
            if message is None:
                await asyncio.Event().wait()  # a client that goes has this call cancelled
            assert message is not None
            return message

        async def send(message: MutableMapping[str, Any]) -> None:
            await sender.send(dict(message))

        async def run() -> None:
            async with sender:
                await self._app(dict(scope), receive, send)

        running = asyncio.create_task(run())
        try:
            async with receiver:
                async for message in receiver:
                    if message["type"] == "http.response.start":
                        message["headers"] = [*message["headers"], (REPLICA_HEADER, self._name)]
                    yield message
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def check_health(self) -> None:
        """Raise what `/live` would say 503 for: Serve then starts another replica in place of this one."""
        if self._engine.status.phase == "dead":
            raise RuntimeError(self._engine.status.reason)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell `mambad_ray.scaling` how busy this replica is."""
        stats = self._engine.stats
        return {
            "running": float(sum(each.num_running for each in stats)),
            "waiting": float(sum(each.num_waiting + each.num_preempted for each in stats)),
            "slots": float(self._num_slots),
        }

    async def __del__(self) -> None:
        # Serve awaits this after the last request of a replica that goes.
        if hasattr(self, "_engine"):
            await self._engine.stop(ENGINE_EXIT_S)
