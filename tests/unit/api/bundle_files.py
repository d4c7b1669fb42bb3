"""Content of bundles, and bundles of any content."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import zstandard

TOP = "figure-13-cpu-here"


def content(file: Path) -> dict[str, bytes]:
    """Return the text of each file of a bundle by its path below the bundle's folder."""
    raw = io.BytesIO(zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes()))
    with tarfile.open(fileobj=raw) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    return {path.partition("/")[2]: text for path, text in found.items()}


def packed(files: Mapping[str, bytes], into: Path, with_sums: bool = False) -> Path:
    """Write a bundle with these files; `with_sums` with new checksums."""
    files = {**files}
    if with_sums:
        listed = [path for path in files if path not in ("MANIFEST", "SHA256SUMS")]
        sums = {path: sha256(files[path]).hexdigest() for path in listed}
        manifest = "".join(f"{len(files[path])}\t{digest}\t{path}\n" for path, digest in sums.items())
        files["MANIFEST"] = manifest.encode()
        sums["MANIFEST"] = sha256(files["MANIFEST"]).hexdigest()
        files["SHA256SUMS"] = "".join(f"{digest}  {path}\n" for path, digest in sums.items()).encode()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{TOP}/{path}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    into.write_bytes(zstandard.ZstdCompressor(level=1).compress(raw.getvalue()))
    return into
