"""The console's static files and the headers that let them load nothing else.

Read once, when this module is imported: no path of a request ever reaches the file system. What the files
show they ask for at `/v1`, `/state` and `/metrics`, like any other client.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("console")
PAGE = "index.html"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, as it goes out."""

    body: bytes
    media_type: str
    etag: str


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    return StaticFile(body, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


FILES = {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in MEDIA_TYPES}
PATHS = frozenset({"/"} | {f"/console/{name}" for name in FILES})
"""Open without a key: they hold nothing that is not published."""
