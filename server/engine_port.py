"""What the HTTP side needs of the engine. Two implementations: AsyncEngine, and the fake of the tests."""

from collections.abc import Sequence
from typing import Any, Protocol

from mambad.engine.async_engine import EngineStatus
from mambad.engine.errors import EngineDeadError, NotReadyError
from mambad.engine.messages import EngineInfo
from mambad.engine.outputs import EngineStats
from mambad.engine.request import Submission
from mambad.engine.stream import RequestStream


class EnginePort(Protocol):
    """The part of AsyncEngine that requests and probes use; see there."""

    status: EngineStatus
    info: EngineInfo | None
    stats: EngineStats

    def submit(self, submissions: Sequence[Submission]) -> list[RequestStream]:
        """Put requests in line, all or none."""
        ...

    async def state_report(self, **options: Any) -> dict[str, Any]:
        """Return the engine's part of `GET /state`."""
        ...


def info_of(engine: EnginePort) -> EngineInfo:
    """Return what start-up computed.

    Raises:
        NotReadyError: the model is loading.
        EngineDeadError: the engine has gone.
    """
    if engine.status.phase == "dead":
        raise EngineDeadError(engine.status.reason)
    if engine.info is None:
        raise NotReadyError(loading_message(engine.status), code="model_loading")
    return engine.info


def require_ready(engine: EnginePort) -> EngineInfo:
    """Return what start-up computed, if the engine is ready and not draining.

    Raises:
        NotReadyError: loading or draining.
        EngineDeadError: the engine has gone.
    """
    info = info_of(engine)
    if engine.status.phase == "draining":
        raise NotReadyError("The server is shutting down.", code="draining")
    return info


def loading_message(status: EngineStatus) -> str:
    """Say how far loading has come."""
    progress = "" if status.progress is None else f", {status.progress:.0%}"
    return f"The model is loading: {status.reason}{progress}"
