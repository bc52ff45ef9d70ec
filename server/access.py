"""Who may call: keys, and for keyless servers the browser's `Origin` and `Host`.

Pure ASGI. Paths that probes and scrapers use are open. A web page may post to a keyless server on its
reader's own machine: therefore a foreign `Origin` is refused, and on loopback a `Host` that is not local.
"""

import hashlib
import hmac
from collections.abc import Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mambad.server.console_files import PATHS as CONSOLE_PATHS
from mambad.server.errors import ApiError, error_response
from mambad.server.settings import AppSettings

PROBE_PATHS = frozenset(("/live", "/ready", "/health", "/ping"))
OPEN_PATHS = PROBE_PATHS | CONSOLE_PATHS | {"/version", "/load", "/docs", "/openapi.json"}
METRICS_PATH = "/metrics"
UNAUTHORIZED = {"www-authenticate": "Bearer"}


class KeyRing:
    """A set of keys that can be replaced while the server runs. Only digests are kept."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._digests = _digests(keys)
        self.is_enabled = bool(keys)
        """Whether a key is asked for. Never changes, so that an emptied key file opens nothing."""

    def replace(self, keys: Sequence[str]) -> None:
        """Accept these keys from now on, and no others."""
        self._digests = _digests(keys)

    def holds(self, key: bytes) -> bool:
        """Whether the key is one of these; takes the same time whichever it is."""
        digest = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(digest, other) for other in self._digests]
        return any(matches)


class AccessMiddleware:
    """Refuses requests before anything reads them."""

    def __init__(self, app: ASGIApp, settings: AppSettings, api_keys: KeyRing, admin_keys: KeyRing) -> None:
        self._app = app
        self._settings = settings
        self._api_keys = api_keys
        self._admin_keys = admin_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error_response(error)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers, path = Headers(scope=scope), scope["path"].removeprefix(scope.get("root_path", ""))
        if path not in PROBE_PATHS and not self._is_known_host(headers.get("host", "")):
            return ApiError(
                403, "This Host is not served here; see --allowed-hosts.", code="host_not_allowed"
            )
        if not self._is_known_origin(headers):
            return ApiError(
                403, "Pages of this Origin may not call; see --allowed-origins.", code="origin_not_allowed"
            )
        is_open = path in OPEN_PATHS or (path == METRICS_PATH and not self._settings.protect_metrics)
        if is_open or scope["method"] == "OPTIONS" or not self._api_keys.is_enabled:
            return None
        key = bearer_key(headers)
        if self._api_keys.holds(key) or self._admin_keys.holds(key):
            return None
        return ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers=UNAUTHORIZED)

    def _is_known_host(self, host: str) -> bool:
        name, allowed = _host_name(host), self._settings.allowed_hosts
        is_keyless_loopback = self._settings.is_loopback and not self._api_keys.is_enabled
        if "*" in allowed or not (allowed or is_keyless_loopback):
            return True
        return name in allowed or host in allowed or (is_keyless_loopback and _is_local(name))

    def _is_known_origin(self, headers: Headers) -> bool:
        origin, allowed = headers.get("origin"), self._settings.allowed_origins
        if origin is None or self._api_keys.is_enabled or "*" in allowed or origin in allowed:
            return True
        return origin.partition("://")[2] == headers.get("host")


def check_admin(request: Request, admin_keys: KeyRing, is_loopback: bool) -> None:
    """Let only an administrator pass: by key, or without one where only this machine can call.

    Raises:
        ApiError: 401 or 403.
    """
    if not admin_keys.is_enabled:
        if not is_loopback:
            raise ApiError(
                403,
                "Set --admin-api-key: without one this path answers on loopback and the Unix socket only.",
                code="admin_key_not_set",
            )
    elif not admin_keys.holds(bearer_key(request.headers)):
        raise ApiError(401, "An admin API key is needed.", code="invalid_api_key", headers=UNAUTHORIZED)


def bearer_key(headers: Headers) -> bytes:
    """Return the key that a request carries, or nothing."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _digests(keys: Sequence[str]) -> list[bytes]:
    return [hashlib.sha256(key.encode()).digest() for key in keys]


def _host_name(host: str) -> str:
    """Return `Host` without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
