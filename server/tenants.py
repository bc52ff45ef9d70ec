"""Who a request belongs to: what one tenant has stored, another can't see.

A tenant is a digest of the API key and of the `cache_salt` that the request names. Where no key is asked for,
what a client sends as one says nothing, and the salt alone tells tenants apart.
"""

import hashlib

from starlette.datastructures import Headers

from mambad.server.access import KeyRing, bearer_key


def key_digest(headers: Headers, api_keys: KeyRing) -> bytes:
    """Return the digest of the key that a request carries."""
    return hashlib.sha256(bearer_key(headers) if api_keys.is_enabled else b"").digest()


def tenant_of(digest: bytes, cache_salt: str | None) -> str:
    """Return the tenant of a request.

    Args:
        digest: of its key.
        cache_salt: as it names it.
    """
    return hashlib.sha256(digest + (cache_salt or "").encode()).hexdigest()
