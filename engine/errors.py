"""Everything the engine raises on purpose.

    EngineError
    ├── RequestError            the client asked for something that can't be done (4xx)
    │   ├── PromptTooLongError
    │   └── QueueFullError      try again later (429)
    ├── ServiceError            our side can't answer now (5xx)
    │   ├── NotReadyError       loading or draining (503)
    │   ├── EngineDeadError     the engine process has gone (503)
    │   └── StepFailedError     a step raised; its requests fail (500)
    ├── ConfigError             start-up ends with exit code 2 and one line
    └── LoadError               likewise, for a checkpoint that can't be served

`mambad.server.errors` holds the only mapping from these to status codes.
"""


class EngineError(Exception):
    """Root of what the engine raises on purpose."""


class RequestError(EngineError):
    """The request can't be served as asked.

    Attributes:
        param: name of the wire field at fault, or None.
        code: OpenAI-style error code.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLongError(RequestError):
    """The prompt alone does not fit into the model's context."""

    def __init__(self, num_prompt_tokens: int, max_model_len: int, *, param: str = "prompt") -> None:
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{num_prompt_tokens} input tokens. Please reduce the length of the input prompt.",
            param=param,
            code="context_length_exceeded",
        )


class QueueFullError(RequestError):
    """The queue holds as many requests or tokens as it may."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="queue_full")


class ServiceError(EngineError):
    """The server can't answer now; the client did nothing wrong."""

    code = "engine_error"


class NotReadyError(ServiceError):
    """The engine is loading or draining; `code` says which."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class EngineDeadError(ServiceError):
    """The engine process has ended or hangs."""

    code = "engine_dead"


class StepFailedError(ServiceError):
    """The step that held this request raised."""

    code = "engine_error"


class ConfigError(EngineError):
    """A setting can't work; the message names value, limit and remedy."""


class LoadError(EngineError):
    """A checkpoint can't be served; the message names what is wrong and what to do."""
