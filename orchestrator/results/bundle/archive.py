"""Bundle files: reproducible .tar.zst archives, safe unpacking, and checksums."""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import Problem, ReproError
from orchestrator.files import single_name
from orchestrator.reading.logs import decompressed, file_blocks
from orchestrator.text import counted

LEVEL = 3
"""Compression level of zstd, its default. One thread, because the number of threads changes the bytes."""

_IN_MEMORY_BYTES = 1 << 24
_BLOCK_BYTES = 1 << 20

_MOST_MEMBERS = 100_000
_DEEPEST = 16
_LONGEST_PATH_BYTES = 1024
_LONGEST_HEADER_BYTES = _LONGEST_PATH_BYTES + 512
"""Older versions of `tarfile` need quadratic time for a header of many digits."""
_MOST_TRAILING_BYTES = 1 << 20
_SHARE_OF_FREE = 0.9
"""Share of the free disk space that an archive may fill."""


class Archive:
    """Writer of an archive; files keep their order and have no owner and the same time (UTC).

    `added` are size in bytes, SHA-256 and path of each file.
    """

    def __init__(self, tar: tarfile.TarFile, top: str, at: datetime, scratch: Path) -> None:
        self._tar, self._top, self._scratch = tar, top, scratch
        self._mtime = calendar.timegm(at.timetuple())
        self.added: list[tuple[int, str, str]] = []

    def add(self, path: str, blocks: Iterable[bytes]) -> None:
        """Add a file; a large one is buffered on disk, because a tar header contains the size."""
        digest, size_bytes = hashlib.sha256(), 0
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, dir=str(self._scratch)) as spool:
            for block in blocks:
                digest.update(block)
                size_bytes += len(block)
                spool.write(block)
            spool.seek(0)
            member = tarfile.TarInfo(f"{self._top}/{path}")
            member.size, member.mtime, member.mode = size_bytes, self._mtime, 0o644
            self._tar.addfile(member, spool)
        self.added.append((size_bytes, digest.hexdigest(), path))


@contextlib.contextmanager
def new_archive(file: Path, top: str, at: datetime) -> Iterator[Archive]:
    """Open a .tar.zst for writing; all its files are below the folder `top`."""
    import zstandard

    packing = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with (
        file.open("wb") as raw,
        packing.stream_writer(raw, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        yield Archive(tar, top, at, file.parent)


@contextlib.contextmanager
def unpacked(file: Path) -> Iterator[tuple[Path, list[str]]]:
    """Unpack an archive into a temporary folder; yield the folder and the paths of its files.

    Raises ReproError for a damaged archive, and for an archive with anything but files below one folder.
    """
    with tempfile.TemporaryDirectory(prefix="repro-bundle-") as scratch:
        top, paths = _unpack(file, Path(scratch))
        yield Path(scratch) / top, paths


def _unpack(file: Path, into: Path) -> tuple[str, list[str]]:
    paths: list[str] = []
    free_bytes = int(shutil.disk_usage(into).free * _SHARE_OF_FREE)
    try:
        with file.open("rb") as raw:
            stream = _Decompressed(raw)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as tar:  # type: ignore[call-overload]  # it only reads
                for number, member in enumerate(tar, 1):
                    path = _path_of(file, member)
                    if number > _MOST_MEMBERS:
                        raise ReproError(Problem(f"not a bundle: more than {_MOST_MEMBERS:,} files", f"{file}:"))
                    if member.isdir():
                        continue
                    free_bytes -= member.size
                    if free_bytes < 0:
                        what = f"its files do not fit into {into.parent} (at {path})"
                        raise ReproError(Problem(what, f"{file}:", "set TMPDIR to a folder with more space"))
                    content = tar.extractfile(member)
                    assert content is not None  # a regular file has content
                    try:
                        (into / path).parent.mkdir(parents=True, exist_ok=True)
                        with (into / path).open("xb") as out:
                            shutil.copyfileobj(content, out, _BLOCK_BYTES)
                    except (FileExistsError, NotADirectoryError):
                        raise ReproError(Problem(f"contains {path!r} twice", f"{file}:")) from None
                    paths.append(path)
            trailing_bytes = 0
            while block := stream.read(_BLOCK_BYTES):  # to the end of the file, where zstd's checksum is
                trailing_bytes += len(block)
                if trailing_bytes > _MOST_TRAILING_BYTES:
                    raise ReproError(Problem("continues after the end of the archive", f"{file}:"))
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ReproError(Problem(f"damaged, or not a bundle ({reason})", f"{file}:", "get it again")) from None
    tops = sorted({path.partition("/")[0] for path in paths})
    if len(tops) != 1 or any("/" not in path for path in paths):
        raise ReproError(Problem("not a bundle: its files are not below one folder", f"{file}:"))
    return tops[0], [path.partition("/")[2] for path in paths]


class _Member(tarfile.TarInfo):
    """Member of an archive that refuses oversized headers before they are read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Return the member that a header describes; ReadError for an oversized header."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or member.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file or an invalid size")
        if not member.isfile() and not member.isdir() and member.size > _LONGEST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {member.size:,} bytes")
        return member


def _path_of(file: Path, member: tarfile.TarInfo) -> str:
    """Return the path of a regular file or folder below the top folder; else raise ReproError."""
    kind = "a link" if member.issym() or member.islnk() else "a device, a pipe or a sparse file"
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise ReproError(Problem(f"not a bundle: {member.name!r} is {kind}", f"{file}:"))
    try:
        path_within(member.name)
        if member.name.count("/") >= _DEEPEST or len(member.name.encode()) > _LONGEST_PATH_BYTES:
            raise ReproError("too deep")
    except ReproError:
        raise ReproError(Problem(f"{member.name[:200]!r} is not a path of a bundle", f"{file}:")) from None
    return member.name


class _Decompressed:
    """File object over compressed data; ValueError if it is damaged or cut off."""

    def __init__(self, raw: BinaryIO) -> None:
        def refuse(what: str) -> None:
            raise ValueError(what)

        self._pieces, self._ready = decompressed(raw, refuse), bytearray()

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        while len(self._ready) < size and (piece := next(self._pieces, None)) is not None:
            self._ready += piece
        block = bytes(self._ready[:size])
        del self._ready[:size]
        return block


MANIFEST, SUMS = "MANIFEST", "SHA256SUMS"
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_LARGEST_TEXT_BYTES = 1 << 26


def text_of(folder: Path, name: str) -> str:
    """Return a text file of the bundle; ValueError if it is too long or not UTF-8."""
    with (folder / name).open("rb") as file:
        text = file.read(_LARGEST_TEXT_BYTES + 1)
    if len(text) > _LARGEST_TEXT_BYTES:
        raise ValueError(f"{name} is too long")
    return text.decode()


def changed_files(folder: Path, paths: Sequence[str]) -> Iterator[str]:
    """Yield each file that differs from SHA256SUMS or MANIFEST."""
    try:
        lines = text_of(folder, SUMS).splitlines()
        sums = {match[2]: match[1] for line in lines if (match := _SUM.fullmatch(line))}
        entries = (line.split("\t") for line in (text_of(folder, MANIFEST) if MANIFEST in sums else "").splitlines())
        sizes = {path: (int(size_bytes), digest) for size_bytes, digest, path in entries}
    except (OSError, ValueError):
        yield f"{SUMS} or {MANIFEST}: cannot be read"
        return
    if len(sums) != len(lines):
        yield f"{SUMS}: invalid or repeated: {counted(len(lines) - len(sums), 'line')}"
    yield from (f"{path}: is missing" for path in sorted(sums.keys() - set(paths)))
    yield from (f"{path}: is not in {SUMS}" for path in sorted(set(paths) - sums.keys() - {SUMS}))
    for path in sorted(sums.keys() & set(paths)):
        if _sha256(folder / path) != sums[path]:
            yield f"{path}: was changed"
        elif path != MANIFEST and sizes.get(path) != ((folder / path).stat().st_size, sums[path]):
            yield f"{path}: differs from its entry in {MANIFEST}"
    yield from (f"{path}: is in {MANIFEST} and not in {SUMS}" for path in sorted(sizes.keys() - sums.keys()))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in file_blocks(file):
            digest.update(block)
    return digest.hexdigest()


def path_within(path: str) -> str:
    """Return the path if it is within the bundle; else raise ReproError."""
    for part in path.split("/"):
        single_name(part)
    return path
