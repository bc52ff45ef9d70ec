"""Where responses are asked for by their id: those that have ended, and those that are still being made.

Used from the event loop; only the store behind it is used elsewhere, too.
"""

from typing import Any, Protocol

from mambad.server.errors import ApiError
from mambad.server.response_store import ResponseStore, StoredResponse


class Cancel(Protocol):
    """Ends a response that is being made; `is_kept` with a record of what it has come to."""

    def __call__(self, *, is_kept: bool = True) -> None:
        """End it."""
        ...


class ResponseDesk:
    """Keeps the records of responses.

    Args:
        store: keeps them.
    """

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._running: dict[str, tuple[str, Cancel]] = {}

    def begin(self, record: StoredResponse, cancel: Cancel) -> None:
        """Keep the record of a response that is being made."""
        self._running[record.id] = (record.tenant, cancel)
        self._store.put(record)

    def is_running(self, response_id: str) -> bool:
        """Whether a response that has begun here is still being made."""
        return response_id in self._running

    def end(self, response_id: str, record: StoredResponse | None) -> None:
        """A response has ended; None keeps no record of it."""
        self._running.pop(response_id, None)
        if record is not None:
            self._store.put(record)

    def body(self, tenant: str, response_id: str) -> dict[str, Any]:
        """Return a response as it is.

        Raises:
            ApiError: 404: the tenant has no such response.
        """
        record = self._store.get(tenant, response_id)
        if record is None:
            raise _not_found(response_id)
        return record.body

    def cancel(self, tenant: str, response_id: str) -> dict[str, Any]:
        """End a response that is being made; return it, or one that has already ended, as it is.

        Raises:
            ApiError: 404: the tenant has no such response.
        """
        owner, cancel = self._running.get(response_id, ("", None))
        if cancel is not None and owner == tenant:
            cancel()
        return self.body(tenant, response_id)

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response; one that is being made is ended first.

        Raises:
            ApiError: 404: the tenant has no such response.
        """
        owner, cancel = self._running.get(response_id, ("", None))
        if cancel is not None and owner == tenant:
            cancel(is_kept=False)
            self._store.delete(tenant, response_id)
        elif not self._store.delete(tenant, response_id):
            raise _not_found(response_id)


def _not_found(response_id: str) -> ApiError:
    message = f"Response with id '{response_id[:100]}' not found."
    return ApiError(404, message, "response_id", "response_not_found")
