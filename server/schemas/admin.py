"""What administrators send and get, on the wire."""

from typing import Annotated

from pydantic import BaseModel, Field

from mambad.server.schemas.common import WireModel

MAX_IDS = 10_000


class AbortRequest(WireModel):
    """Ids of answers, or all that runs."""

    request_ids: list[Annotated[str, Field(max_length=256)]] | None = Field(None, max_length=MAX_IDS)
    abort_all: bool | None = None


class AbortAnswer(BaseModel):
    """How many choices were ended."""

    num_aborted: int
