"""Log files of a job, read in blocks of whole lines, compressed or not, in constant memory."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from orchestrator.errors import Problem
from orchestrator.job_dir import Unreadable, open_job_file

LONGEST_LINE_BYTES = 1024 * 1024
"""A longer line is no line of a program's log, and is passed over. It is also what is read at once."""

# Where each task has a file of its own, by its number: only the last rank's file has the iterations.
_OF_RANK = re.compile(r"(?:log|out|output|rank|task)[._-]?([0-9]{1,6})\.(?:txt|log|out)")
_NEWLINE = ord("\n")
_PACKED = ("", ".gz", ".zst")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a job's log as it was found: where, how big it was, and what tells it from another in its place."""

    folder: Path
    name: str
    device: int
    inode: int
    size: int

    def blocks(self, offset: int = 0) -> LogBlocks:
        """What stands there from that byte on; of an archive, from that byte of what is packed in it."""
        return LogBlocks(self, offset)


class LogBlocks(Iterator[bytes]):
    """Blocks of whole lines, of some MiB at most; the last one may end in the middle of a line, where the file does.

    Together they have as many bytes as the file, or what is packed in it: a line that is passed over leaves blank
    lines of its length. Unreadable where the disk fails.
    """

    def __init__(self, file: LogFile, offset: int) -> None:
        self._path, self._file = file.folder / file.name, file
        self._trouble: list[str] = []
        self._passed_over = 0
        self._first_bytes = 0
        self._blocks = self._read(offset)

    def __next__(self) -> bytes:
        return next(self._blocks)

    @property
    def complaints(self) -> list[str]:
        """What could not be read so far, each in one line."""
        if not self._passed_over:
            return self._trouble
        lines = "a line" if self._passed_over == 1 else f"{self._passed_over} lines, the first"
        return [*self._trouble, f"{self._path}: {lines} of {self._first_bytes:,} bytes, passed over"]

    def _read(self, offset: int) -> Iterator[bytes]:
        opened = open_job_file(self._file.folder, self._file.name)
        if opened is None:
            return
        with opened:
            status = os.fstat(opened.fileno())
            if (status.st_dev, status.st_ino) != (self._file.device, self._file.inode):
                self._complain("another file took its place before it was read")
                return
            try:
                yield from self._whole_lines(self._pieces(opened, offset))
            except OSError as error:
                raise Unreadable(Problem(f"{self._path}: cannot be read ({error.strerror or error})")) from None

    def _pieces(self, opened: BinaryIO, offset: int) -> Iterator[bytes]:
        """The bytes from there on, in pieces of at most `LONGEST_LINE_BYTES`."""
        if is_packed(opened):
            yield from _in_pieces(unpacked(opened, self._complain), offset)
            return
        opened.seek(offset)
        while piece := opened.read(LONGEST_LINE_BYTES):
            yield piece

    def _whole_lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        rest = b""  # the begin of a line that goes on in the next piece
        passing = False
        for piece in pieces:
            first_end, start = piece.find(b"\n") + 1 or len(piece), 0
            if passing or len(rest) + first_end > LONGEST_LINE_BYTES:
                yield from _blank(len(rest) + first_end)
                self._pass_over(len(rest) + first_end, is_new=not passing)
                passing = piece[first_end - 1] != _NEWLINE
                rest, start = b"", first_end
            cut = piece.rfind(b"\n", start) + 1
            if cut:
                yield b"".join((rest, memoryview(piece)[start:cut]))
                rest, start = b"", cut
            rest += piece[start:]
        if rest:
            yield rest

    def _complain(self, what: str) -> None:
        self._trouble.append(f"{self._path}: {what}")

    def _pass_over(self, length: int, *, is_new: bool) -> None:
        self._passed_over += is_new
        if self._passed_over == 1:
            self._first_bytes += length


def _in_pieces(unpacked: Iterator[bytes], offset: int) -> Iterator[bytes]:
    """The bytes from there on, put together to pieces of `LONGEST_LINE_BYTES`."""
    kept, size = [], 0
    for some in unpacked:
        skipped = min(offset, len(some))
        offset -= skipped
        kept.append(some[skipped:])
        size += len(kept[-1])
        if size >= LONGEST_LINE_BYTES:
            whole = b"".join(kept)
            for at in range(0, size - size % LONGEST_LINE_BYTES, LONGEST_LINE_BYTES):
                yield whole[at : at + LONGEST_LINE_BYTES]
            kept = [whole[size - size % LONGEST_LINE_BYTES :]]
            size = len(kept[0])
    if size:
        yield b"".join(kept)


def _blank(length: int) -> Iterator[bytes]:
    """So many blank lines."""
    for _ in range(length // LONGEST_LINE_BYTES):
        yield b"\n" * LONGEST_LINE_BYTES
    if length % LONGEST_LINE_BYTES:
        yield b"\n" * (length % LONGEST_LINE_BYTES)


def log_files(folder: Path) -> tuple[LogFile, ...]:
    """The log files of a job in reading order: the log, those of single ranks, what the script printed around them.

    Of each the file itself, or it packed by gzip or zstd. Unreadable where one may not be read, which says nothing of
    the job; ReproError where one is no file.
    """
    log, batch = _found(folder, "log.txt"), _found(folder, "batch.txt")
    ranks = [_found(folder, name) for name in _names_of_ranks(folder)]
    return tuple(file for file in (log, *ranks, batch) if file is not None)


def log_blocks(folder: Path) -> Iterator[bytes]:
    """Yield all log files of a job in blocks of whole lines. Errors as of `log_files`."""
    for file in log_files(folder):
        yield from file.blocks()


def _found(folder: Path, name: str) -> LogFile | None:
    for ending in _PACKED:
        file = open_job_file(folder, name + ending)
        if file is not None:
            with file:
                status = os.fstat(file.fileno())
            return LogFile(folder, name + ending, status.st_dev, status.st_ino, status.st_size)
    return None


def _names_of_ranks(folder: Path) -> list[str]:
    """Without what is packed, by number."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:  # not there, or it may be passed through alone
        return []
    plain = {name.removesuffix(".gz").removesuffix(".zst") for name in names}
    found = [(int(match[1]), name) for name in plain if (match := _OF_RANK.fullmatch(name))]
    return [name for _, name in sorted(found)]


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
