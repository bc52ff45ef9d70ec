"""What the HTTP side needs of the engine. Two implementations: AsyncEngine, and the fake of the tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mambad.engine.async_engine import EngineStatus
from mambad.engine.errors import EngineDeadError, NotReadyError, RequestError
from mambad.engine.messages import EngineInfo
from mambad.engine.outputs import EngineStats
from mambad.engine.request import Submission
from mambad.engine.stream import RequestStream


class EnginePort(Protocol):
    """The part of AsyncEngine that requests and probes use; see there."""

    status: EngineStatus

    @property
    def info(self) -> EngineInfo | None:
        """What start-up computed."""
        ...

    @property
    def stats(self) -> tuple[EngineStats, ...]:
        """The newest report of every rank."""
        ...

    def submit(self, submissions: Sequence[Submission], rank: int | None = None) -> list[RequestStream]:
        """Put requests in line, all or none."""
        ...

    async def state_reports(self, **options: Any) -> list[dict[str, Any]]:
        """Return each engine's part of `GET /state`."""
        ...

    def cancel(self, is_meant: Callable[[str], bool]) -> int:
        """End the requests of which `is_meant` says so by their id."""
        ...

    async def inject(self, name: str, times: int, duration_ms: int, rank: int) -> bool | None:
        """Order a fault."""
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


def requested_rank(headers: Mapping[str, str]) -> int | None:
    """Return the data-parallel rank that a client asks for by `X-data-parallel-rank`, if it does.

    Raises:
        RequestError: the header is no number.
    """
    value = headers.get("x-data-parallel-rank")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise RequestError("X-data-parallel-rank must be a number, from 0")
    return int(value)
