"""Logs that were packed after the job, by gzip or zstd: read as they are, in memory that does not grow with them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PACKED_BYTES = 256
"""Of an archive, unpacked at once: 8 MiB at the very most."""
_WIDEST_WINDOW_BYTES = 128 * 1024 * 1024
"""What `zstd --long` uses, and every zstd reads."""


class _Frame(Protocol):
    """What zlib and zstandard have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def is_packed(opened: BinaryIO) -> bool:
    """Whether a file is an archive, whatever it is called; it is left at its beginning."""
    begins = opened.read(len(_ZSTANDARD))
    opened.seek(0)
    return begins.startswith((_GZIP, _ZSTANDARD))


def unpacked(opened: BinaryIO, complain: Callable[[str], None]) -> Iterator[bytes]:
    """What an archive holds, or several put together, up to where it is damaged or ends early; both are said."""
    begins = opened.read(len(_ZSTANDARD))
    opened.seek(0)
    new_frame, errors = _gzip() if begins.startswith(_GZIP) else _zstandard()
    frame: _Frame | None = None
    try:
        while packed := opened.read(_PACKED_BYTES):
            while packed:
                if frame is None:
                    packed = packed.lstrip(b"\0")  # padding, as tapes have it
                    frame = new_frame() if packed else None
                if frame is not None:
                    yield frame.decompress(packed)
                    packed, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    except errors as error:
        complain(f"a damaged archive, read up to there ({error})")
    else:
        if frame is not None:
            complain("an archive that ends early, read up to there")


def _gzip() -> tuple[Callable[[], _Frame], tuple[type[Exception], ...]]:
    return lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), (zlib.error,)


def _zstandard() -> tuple[Callable[[], _Frame], tuple[type[Exception], ...]]:
    import zstandard

    tool = zstandard.ZstdDecompressor(max_window_size=_WIDEST_WINDOW_BYTES)
    return tool.decompressobj, (zstandard.ZstdError,)
