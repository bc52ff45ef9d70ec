"""What a chat's fields are called in `/v1/responses`, so that errors name what the client has sent. Pure."""

from collections.abc import Iterator
from contextlib import contextmanager

from mambad.engine.errors import RequestError
from mambad.server.errors import ApiError

RENAMED = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
)
"""Names of a chat's fields → what they are called here."""


@contextmanager
def named_as_here() -> Iterator[None]:
    """Let the errors of the block name the fields of this endpoint in place of a chat's."""
    try:
        yield
    except ApiError as error:
        error.param = None if error.param is None else name_here(error.param)
        error.message = _said_here(error.message)
        raise
    except RequestError as error:
        error.param = None if error.param is None else name_here(error.param)
        raise


def name_here(name: str) -> str:
    """Return what a field of a chat is called here."""
    for old, new in RENAMED:
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name


def _said_here(message: str) -> str:
    for old, new in RENAMED:
        message = message.replace(f"`{old}`", f"`{new}`").replace(f"`{old}.", f"`{new}.")
    return message
