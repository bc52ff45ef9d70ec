"""Prints what the image's layers weigh, as a registry would hold them and unpacked: part of `make image`.

Writes the image to `build/image/oci` in the OCI layout and reads the sizes there. Only for an image that
buildah built.
"""

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "build/image"
TAG = "mambad:cpu"
BUILDAH = (
    "buildah", "--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "run"),
    "--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"),
)  # fmt: skip


def unpacked_size(path: Path) -> int:
    """Return the bytes of a compressed blob's content."""
    stream, size = zlib.decompressobj(wbits=31), 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            size += len(stream.decompress(chunk))
    return size


def layers(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Yield compressed bytes, unpacked bytes and the instruction of each layer."""

    def blob(digest: str) -> Path:
        return folder / "blobs" / digest.replace(":", "/")

    def read(digest: str) -> Any:
        return json.loads(blob(digest).read_text(encoding="utf-8"))

    manifest = read(json.loads((folder / "index.json").read_text(encoding="utf-8"))["manifests"][0]["digest"])
    history = [
        entry for entry in read(manifest["config"]["digest"])["history"] if not entry.get("empty_layer")
    ]
    for layer, entry in zip(manifest["layers"], history, strict=True):
        words = entry.get("created_by", "").removeprefix("/bin/sh -c ").removeprefix("#(nop) ").split()
        yield layer["size"], unpacked_size(blob(layer["digest"])), " ".join(words)


def main() -> int:
    """Print the table."""
    if not (FOLDER / "store").exists():
        return 0
    folder = FOLDER / "oci"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([*BUILDAH, "push", "--quiet", TAG, f"oci:{folder}:latest"], check=True)
    rows = list(layers(folder))
    rows.append((sum(row[0] for row in rows), sum(row[1] for row in rows), "in all"))
    sys.stdout.write("compressed   unpacked  layer\n")
    for compressed, unpacked, text in rows:
        sys.stdout.write(f"{compressed / 1e6:7.1f} MB {unpacked / 1e6:7.1f} MB  {text[:90]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
