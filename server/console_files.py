"""The console's static files and the headers that let them load nothing else.

Read once, when this module is imported: no path of a request ever reaches the file system. What the files
show they ask for at `/v1`, `/state` and `/metrics`, like any other client.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("console")
PAGE = "index.html"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cache-control": "no-cache",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, as it goes out."""

    body: bytes
    media_type: str
    etag: str

    def is_known_to(self, if_none_match: str) -> bool:
        """Whether the header names this version; a proxy that compresses makes the tag a weak one."""
        tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
        return self.etag in tags or "*" in tags


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    return StaticFile(body, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


FILES = {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in MEDIA_TYPES}
PATHS = frozenset({"/"} | {f"/console/{name}" for name in FILES})
"""Open without a key: they hold nothing that is not published."""
