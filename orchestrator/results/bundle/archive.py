"""Bundle files: reproducible .tar.zst archives, safe unpacking, and OpenSSH signatures."""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, BinaryIO

from orchestrator.errors import Problem, ReproError
from orchestrator.files import single_name, written_whole
from orchestrator.reading.logs import decompressed as in_pieces

LEVEL = 3
"""Of zstd, and its own default; single-threaded, as the number of threads would change the bytes."""

_IN_MEMORY_BYTES = 1 << 24
_BLOCK_BYTES = 1 << 20

_MOST_MEMBERS = 100_000
_DEEPEST = 16
_LONGEST_PATH_BYTES = 1024
_LONGEST_HEADER_BYTES = _LONGEST_PATH_BYTES + 512
"""The longest path and its fields. Older versions of `tarfile` need time in the square of the digits in a header."""
_MOST_BEHIND_END_BYTES = 1 << 20
_SHARE_OF_FREE = 0.9
"""How much of the free disk an archive may fill."""


@dataclass(frozen=True, slots=True)
class Added:
    """A file in the archive."""

    path: str
    size_bytes: int
    sha256: str


class Archive:
    """Writer of an archive; files keep their order, belong to nobody and have one time (UTC)."""

    def __init__(self, tar: tarfile.TarFile, top: str, at: datetime, scratch: Path) -> None:
        self._tar, self._top, self._scratch = tar, top, scratch
        self._mtime = calendar.timegm(at.timetuple())

    def add(self, path: str, blocks: Iterable[bytes]) -> Added:
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
        return Added(path, size_bytes, digest.hexdigest())


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

    ReproError for a damaged archive, or one with anything but files below one folder.
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
                        raise ReproError(Problem(f"{file}: more than {_MOST_MEMBERS:,} files, which no bundle has"))
                    if member.isdir():
                        continue
                    free_bytes -= member.size
                    if free_bytes < 0:
                        what = f"{file}: unpacks to more than {into.parent} has room for (at {path})"
                        raise ReproError(Problem(what, hint="set TMPDIR to a folder with more"))
                    _write(file, into, path, tar.extractfile(member))
                    paths.append(path)
            _require_end(file, stream)
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ReproError(Problem(f"{file}: damaged, or no bundle ({why})", hint="get it again")) from None
    tops = sorted({path.partition("/")[0] for path in paths})
    if len(tops) != 1 or any("/" not in path for path in paths):
        raise ReproError(Problem(f"{file}: no bundle: its files are not below one folder"))
    return tops[0], [path.partition("/")[2] for path in paths]


class _Member(tarfile.TarInfo):
    """Member of an archive that refuses oversized headers before they are read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Return the member that a header describes; ReadError for an oversized header."""
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0 or found.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file, or none")
        if not found.isfile() and not found.isdir() and found.size > _LONGEST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {found.size:,} bytes")
        return found


def _path_of(file: Path, member: tarfile.TarInfo) -> str:
    """Return the path of a regular file or folder below the top folder; else raise ReproError."""
    kind = "a link" if member.issym() or member.islnk() else "a device, a pipe or a sparse file"
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise ReproError(Problem(f"{file}: {member.name!r} in it is {kind}, which no bundle has"))
    parts = member.name.split("/")
    try:
        for part in parts:
            single_name(part)
        if len(parts) > _DEEPEST or len(member.name.encode()) > _LONGEST_PATH_BYTES:
            raise ReproError("too deep")
    except ReproError:
        raise ReproError(Problem(f"{file}: {member.name[:200]!r} in it is no path of a bundle")) from None
    return member.name


def _write(file: Path, into: Path, path: str, content: IO[bytes] | None) -> None:
    assert content is not None  # of a plain file there is one
    place = into / path
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except (FileExistsError, NotADirectoryError):
        raise ReproError(Problem(f"{file}: {path!r} is in it twice")) from None
    with os.fdopen(descriptor, "wb") as out:
        shutil.copyfileobj(content, out, _BLOCK_BYTES)


def _require_end(file: Path, stream: _Decompressed) -> None:
    """Read to the end of the file, where zstd's checksum is; ReproError for data behind the end."""
    behind_bytes = 0
    while block := stream.read(_BLOCK_BYTES):
        behind_bytes += len(block)
        if behind_bytes > _MOST_BEHIND_END_BYTES:
            raise ReproError(Problem(f"{file}: goes on behind its end"))


class _Decompressed:
    """File object over compressed data; ValueError if it is damaged or cut off."""

    def __init__(self, raw: BinaryIO) -> None:
        self._pieces, self._ready = in_pieces(raw, self._refuse), bytearray()

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        while len(self._ready) < size and (piece := next(self._pieces, None)) is not None:
            self._ready += piece
        taken = bytes(self._ready[:size])
        del self._ready[:size]
        return taken

    def _refuse(self, what: str) -> None:
        raise ValueError(what)


NAMESPACE = "repro-bundle"
"""What a key signs here. A signature that the same key made for git or for mail does not count for a bundle."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Result of a check: the signer, or the problem if no allowed signer signed."""

    signer: str | None
    problem: str | None


def signature_of(bundle: Path) -> Path:
    """Return the path of a bundle's signature."""
    return bundle.with_name(f"{bundle.name}.sig")


def require_key(key: Path) -> None:
    """Raise ReproError where the key cannot be read or ssh-keygen is missing."""
    _require_readable("--sign", key, "ssh-keygen -t ed25519 makes a key")
    _ssh_keygen(["-Y", "check-novalidate"], None)


def sign(bundle: Path, key: Path) -> Path:
    """Write a bundle's signature beside it and return its path. ssh-keygen may ask for the key's passphrase."""
    done = _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], bundle)
    if done.returncode:
        what = f"--sign {key}: {bundle} is written and not signed ({_reason(done)})"
        raise ReproError(Problem(what, hint="check the key, then repeat with --force"))
    path = signature_of(bundle)
    with written_whole(path) as part:
        part.write_bytes(done.stdout)
    return path


def check_signature(bundle: Path, allowed: Path) -> Signature:
    """Check a bundle's signature against a file of allowed signers, as `man ssh-keygen` describes it.

    ReproError where that file cannot be read or ssh-keygen is missing.
    """
    _require_readable("--allowed-signers", allowed, "a line of it: NAME KEYTYPE KEY")
    signature = signature_of(bundle)
    if not signature.is_file():
        return Signature(None, f"{signature}: not there: the bundle is not signed")
    of_it = ["-n", NAMESPACE, "-s", str(signature)]
    done = _ssh_keygen(["-Y", "check-novalidate", *of_it], bundle)
    if done.returncode:
        return Signature(None, f"{signature}: no valid signature of {bundle.name} ({_reason(done)})")
    key = done.stdout.decode(errors="replace").strip().rpartition(" with ")[2]
    found = _ssh_keygen(["-Y", "find-principals", "-s", str(signature), "-f", str(allowed)], bundle)
    for name in found.stdout.decode(errors="replace").splitlines() if found.returncode == 0 else []:
        if not _ssh_keygen(["-Y", "verify", "-f", str(allowed), "-I", name, *of_it], bundle).returncode:
            return Signature(f"{name} ({key})", None)
    return Signature(None, f"{signature}: {allowed} does not allow its {key} to sign for {NAMESPACE}")


def _require_readable(option: str, file: Path, hint: str) -> None:
    try:
        if not file.is_file():
            raise ReproError(Problem(f"{option} {file}: no such file", hint=hint))
        file.open("rb").close()
    except OSError as error:
        raise ReproError(Problem(f"{option} {file}: cannot be read ({error.strerror})", hint=hint)) from None


def _ssh_keygen(words: Sequence[str], bundle: Path | None) -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen with the bundle, or nothing, as its input."""
    try:
        if bundle is None:
            return subprocess.run(["ssh-keygen", *words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        with bundle.open("rb") as file:
            return subprocess.run(["ssh-keygen", *words], stdin=file, capture_output=True, check=False)
    except FileNotFoundError as error:
        if error.filename != "ssh-keygen":
            raise ReproError(Problem(f"{bundle}: no such file")) from None
        raise ReproError(
            Problem("ssh-keygen: not found", hint="install OpenSSH's client, or leave the option out")
        ) from None
    except OSError as error:
        raise ReproError(Problem(f"{bundle}: cannot be read ({error.strerror})")) from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line that ssh-keygen printed as an error."""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
