"""Responses that can be asked for, continued and deleted later: what is kept of each, and where.

`ResponseStore` is all that the rest knows; a back end that survives the server has only to implement it. The
records are the front end's: states belong to the engine, which a record only names.
"""

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from mambad.server.chat_past import ChatPast

ENTRY_BYTES, ITEM_BYTES = 2048, 512
"""What a record and an item take besides their contents, roughly."""


class TokenRun(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that a state consumed in one way: `prefill` or `decode`."""

    kind: str
    num_tokens: int


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response and the conversation that it ended.

    Attributes:
        id, tenant: its name, and whose it is.
        body: as sent to the client; its `status` says whether it has ended.
        items: the whole conversation: what came before it, its input and its output.
        token_ids: `packed_ids` of the prompt and of the answer without the token that ended it.
        num_chars, text_digest: of the text of these tokens; see ChatPast.
        runs: provenance: how the state behind the answer came to be. It has not consumed the last token.
        state_id: the engine's name for that state; None = it keeps none.
        num_item_bytes, num_bytes: what the items and the whole record count for.
    """

    id: str
    tenant: str
    body: dict[str, Any]
    items: tuple[dict[str, Any], ...] = ()
    token_ids: bytes = b""
    num_chars: int = 0
    text_digest: bytes = b""
    runs: tuple[TokenRun, ...] = ()
    state_id: str | None = None
    num_item_bytes: int = 0
    num_bytes: int = ENTRY_BYTES

    @property
    def past(self) -> ChatPast:
        """Where the conversation stands."""
        return ChatPast(unpacked_ids(self.token_ids), self.num_chars, self.text_digest)


class ResponseStore(Protocol):
    """Keeps records, each for its tenant only. Methods may be called from any thread."""

    def put(self, record: StoredResponse) -> None:
        """Keep a record; it takes the place of an older one with its id."""
        ...

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a record of a tenant; None if there is none, or no longer."""
        ...

    def find_item(self, tenant: str, item_id: str) -> dict[str, Any] | None:
        """Return an output item of a tenant's responses."""
        ...

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a record; return whether there was one."""
        ...


class MemoryStore:
    """A ResponseStore that lasts as long as the server: the oldest records make room for new ones.

    Args:
        max_entries, max_bytes: most records, and most bytes of all together.
        ttl_s: a record is kept for so long after it was last put.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        max_entries: int,
        max_bytes: int,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[str, tuple[float, StoredResponse]] = OrderedDict()  # oldest first
        self._owners: dict[str, str] = {}  # output item → response
        self.num_bytes = 0
        """Bytes of all records together."""

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: StoredResponse) -> None:
        """See ResponseStore."""
        with self._lock:
            self._drop(record.id)
            self._records[record.id] = (self._clock(), record)
            self.num_bytes += record.num_bytes
            self._owners |= dict.fromkeys(_output_ids(record), record.id)
            self._expire()
            while len(self._records) > self._max_entries or self.num_bytes > self._max_bytes:
                self._drop(next(iter(self._records)))

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """See ResponseStore."""
        with self._lock:
            return self._get(tenant, response_id)

    def find_item(self, tenant: str, item_id: str) -> dict[str, Any] | None:
        """See ResponseStore."""
        with self._lock:
            record = self._get(tenant, self._owners.get(item_id, ""))
        if record is None:
            return None
        return next((item for item in record.body["output"] if item["id"] == item_id), None)

    def delete(self, tenant: str, response_id: str) -> bool:
        """See ResponseStore."""
        with self._lock:
            is_there = self._get(tenant, response_id) is not None
            if is_there:
                self._drop(response_id)
            return is_there

    def _get(self, tenant: str, response_id: str) -> StoredResponse | None:
        self._expire()
        _, record = self._records.get(response_id, (0.0, None))
        return record if record is not None and record.tenant == tenant else None

    def _expire(self) -> None:
        last_s = self._clock() - self._ttl_s
        while self._records:
            oldest, (put_s, _) = next(iter(self._records.items()))
            if put_s > last_s:
                return
            self._drop(oldest)

    def _drop(self, response_id: str) -> None:
        _, record = self._records.pop(response_id, (0.0, None))
        if record is not None:
            self.num_bytes -= record.num_bytes
            for item_id in _output_ids(record):
                self._owners.pop(item_id, None)


def item_bytes(items: Sequence[dict[str, Any]]) -> int:
    """Return what items count for."""
    return len(msgspec.json.encode(items)) + len(items) * ITEM_BYTES


def packed_ids(token_ids: Sequence[int]) -> bytes:
    """Return token ids as four bytes each."""
    return array("I", token_ids).tobytes()


def unpacked_ids(data: bytes) -> list[int]:
    """Return the ids of `packed_ids`."""
    return array("I", data).tolist()


def _output_ids(record: StoredResponse) -> list[str]:
    return [item["id"] for item in record.body["output"]]
