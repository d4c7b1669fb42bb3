"""Download of one file: it continues an interrupted one, and the file has its name only after its checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from orchestrator.clusters.needs import OFFLINE_HINT
from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.workloads.needs import PublicFile

TIMEOUT_S = 60.0
"""Longest wait for the server's next bytes."""

_BLOCK = 1 << 20
_CONTINUES = "repeat the command; it continues where it stopped"


def file_digest(file: Path) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def download(file: PublicFile, target: Path, part: Path) -> None:
    """Download to `part`, check the checksum, and rename it to `target`.

    An existing `part` is continued. If its checksum is wrong at the end, the file is downloaded from its start, once.
    ReproError if the server does not have the file or its content is another one; Unreachable without a connection.
    """
    kept = part.stat().st_size if part.exists() else 0
    if kept < file.bytes:
        kept = _receive(file, part, kept)
    digest = file_digest(part)
    if digest != file.sha256 and kept:
        part.unlink()
        _receive(file, part, 0)
        digest = file_digest(part)
    if digest != file.sha256:
        part.unlink()
        what = f"the checksum of the download is {digest}, and must be {file.sha256}"
        hint = "nothing is kept; a proxy may have replaced the file, or the source has changed"
        raise ReproError(Problem(what, f"{file.url}:", hint))
    part.replace(target)


def _receive(file: PublicFile, part: Path, kept: int) -> int:
    """Add the bytes after the first `kept` ones to `part`. Return how many of them are those of before."""
    request = urllib.request.Request(file.url, headers={"Range": f"bytes={kept}-"} if kept else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            kept = kept if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0
            with part.open("ab" if kept else "wb") as opened:
                size = _copy(file, answer, opened, kept)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and kept:
            return _receive(file, part, 0)
        raise _answer_problem(file, error) from None
    except urllib.error.URLError as error:
        reason = error.reason.strerror or str(error.reason) if isinstance(error.reason, OSError) else str(error.reason)
        raise Unreachable(Problem(f"no connection ({reason})", f"{file.url}:", OFFLINE_HINT)) from None
    except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
        raise Unreachable(Problem(f"no answer ({error})", f"{file.url}:", OFFLINE_HINT)) from None
    if size < file.bytes:
        what = f"the connection ended after {size:,} of {file.bytes:,} bytes"
        raise Unreachable(Problem(what, f"{file.url}:", _CONTINUES))
    return kept


def _copy(file: PublicFile, answer: http.client.HTTPResponse, opened: BinaryIO, kept: int) -> int:
    """Copy the answer, and return the size of the file. A lost connection ends the file early."""
    size = kept
    while size <= file.bytes:  # a longer file is a wrong one
        try:
            block = answer.read(_BLOCK)
        except (ConnectionError, TimeoutError, http.client.HTTPException):
            break
        if not block:
            break
        opened.write(block)
        size += len(block)
    opened.flush()
    os.fsync(opened.fileno())
    return size


def _answer_problem(file: PublicFile, error: urllib.error.HTTPError) -> ReproError:
    what = f"the server answers {error.code} {error.reason}"
    if error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR or error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
        return Unreachable(Problem(what, f"{file.url}:", "repeat the command later"))
    hint = f"put a file with sha256 {file.sha256} at the path of {file.field}, then repeat the command"
    return ReproError(Problem(what, f"{file.url}:", hint))
