"""Identity of an image file, from its superblock."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from datetime import datetime, timezone
from pathlib import Path

_HEAD_BYTES = 128
_SQUASHFS, _SQUASHFS_BYTES = b"hsqs", 96
_SIF, _SIF_AT, _SIF_CREATED_AT = b"SIF_MAGIC\0", 32, 64
_NS = 10**9


def file_identity(file: Path) -> str | None:
    """Return the identity of an image file, as `FORMAT:BYTES:TIME[:DIGEST]`; None if this machine cannot read it.

    A squashfs or SIF has the time of its creation and a digest of its superblock, so a copy has the same identity. A
    file of another format has the time of its last change. A folder has none: its own time is not that of its files.

    The superblock of squashfs 4.0 has the creation time in seconds at byte 8, and also the number of files, the bytes
    used and the positions of all tables (kernel, fs/squashfs/squashfs_fs.h). The header of SIF has a random id at byte
    48 and its creation time at byte 64 (sylabs/sif, pkg/sif/sif.go).
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block
        try:
            status, head = os.fstat(descriptor), b""
            if stat.S_ISREG(status.st_mode):
                head = os.read(descriptor, _HEAD_BYTES)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):  # ValueError: the path has a NUL
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    if head.startswith(_SQUASHFS) and len(head) >= _SQUASHFS_BYTES:
        created = struct.unpack_from("<I", head, 8)[0] * _NS
        return _text("squashfs", status.st_size, created, head[:_SQUASHFS_BYTES])
    if head[_SIF_AT:].startswith(_SIF) and len(head) == _HEAD_BYTES:
        return _text("sif", status.st_size, struct.unpack_from("<q", head, _SIF_CREATED_AT)[0] * _NS, head)
    return _text("file", status.st_size, status.st_mtime_ns)


def _text(kind: str, size: int, time_ns: int, superblock: bytes = b"") -> str:
    seconds, rest = divmod(time_ns, _NS)
    try:
        time = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y%m%dT%H%M%S}"
    except (ValueError, OverflowError, OSError):  # a garbled header
        time = str(seconds)
    fraction = f".{rest:09}" if rest else ""
    digest = f":{hashlib.sha256(superblock).hexdigest()[:12]}" if superblock else ""
    return f"{kind}:{size}:{time}{fraction}Z{digest}"
