"""What became of a request's streams: the numbers that its log line and its trace tell. Plain values."""

from dataclasses import dataclass

from mambad.engine.outputs import RequestTimes
from mambad.server.errors import ApiError


@dataclass(slots=True)
class RunOutcome:
    """Filled in while the streams are read.

    Attributes:
        finish_reasons: by choice, what the client was told of its end; None before that.
        times: by choice, what the engine measured; None where it has not told.
        first_token_s: monotonic time of the first token.
        closed_for: why what had not ended was given up, a finish reason of the metrics; None before that.
        error: what the client was told once the answer had begun.
    """

    finish_reasons: list[str | None]
    times: list[RequestTimes | None]
    first_token_s: float | None = None
    closed_for: str | None = None
    error: ApiError | None = None

    @property
    def queue_s(self) -> float | None:
        """How long the last of the choices waited for its turn."""
        return max((times.queue_s for times in self.times if times is not None), default=None)

    def reasons(self) -> list[str]:
        """Return how each choice has ended, those that were given up among them."""
        return [reason or self.closed_for or "error" for reason in self.finish_reasons]
