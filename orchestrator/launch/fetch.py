"""Fetch of a workload's code and data to the shared file system, on this machine and without a job.

Each item is written under a temporary name in its folder, checked, and renamed. What exists is never changed. A
command that was interrupted continues when it is repeated.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from orchestrator.clusters.needs import Item, fetch_record
from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.files import written_whole
from orchestrator.identity import name_of_user
from orchestrator.launch.checkouts import fetch_checkout, require_checkout
from orchestrator.launch.download import download, file_digest
from orchestrator.launch.text_data import Text, tokenize_text
from orchestrator.launch.token_data import HEADER, write_random_tokens
from orchestrator.text import utc_stamp
from orchestrator.workloads.needs import PublicFile, Repository, TokenData

_HINTS = {
    errno.ENOSPC: "free space, then repeat the command",
    errno.EDQUOT: "your quota is used up: free space, then repeat the command",
    errno.EACCES: "name a folder that you can write to",
    errno.EPERM: "name a folder that you can write to",
    errno.EROFS: "name a folder that you can write to",
}


@dataclass(frozen=True, slots=True)
class Fetched:
    """An item that is in its place: fetched or made now, or there before."""

    item: Item
    how: Literal["fetched", "made", "there already"]


def fetch_items(items: Sequence[Item], text: Text | None = None) -> Iterator[Fetched]:
    """Fetch the items that are missing, check the others, and yield each one that is in its place.

    Data are random tokens, or those of the text. At the end, raise ReproError with the problem of each other item;
    Unreachable if all of these lack a connection.
    """
    errors: list[ReproError] = []
    for item in items:
        try:
            yield _in_place(item, items, text)
        except ReproError as error:
            errors.append(error)
        except OSError as error:
            what = f"cannot be written ({error.strerror or error})"
            path = error.filename2 or error.filename or item.path
            errors.append(ReproError(Problem(what, f"{path}:", _HINTS.get(error.errno or 0))))
    if errors:
        problems = dict.fromkeys(problem for error in errors for problem in error.problems)
        kind = Unreachable if all(isinstance(error, Unreachable) for error in errors) else ReproError
        raise kind(*problems)


def item_state(item: Item) -> str:
    """Return "there", "missing", or what is wrong. Reads no content of files, and needs no network."""
    if not any(os.path.lexists(file) for file in item.files) or _is_empty(item.path):
        return "missing"
    missing = [file.name for file in item.files if not file.exists()]
    if missing:
        return f"{' and '.join(missing)} missing"
    need = item.source.need
    if isinstance(need, Repository):
        try:
            require_checkout(item.path, item.source.address, item.source.commit or "")
        except ReproError as error:
            return error.problems[0].what
    elif isinstance(need, PublicFile) and item.path.stat().st_size != need.bytes:
        return f"{item.path.stat().st_size:,} bytes, must be {need.bytes:,}"
    return "there"


def _in_place(item: Item, items: Sequence[Item], text: Text | None) -> Fetched:
    present = _present(item, text)
    if present is not None:
        return present
    item.path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(item.path):
        present = _present(item, text)  # another command may have fetched it in the meantime
        if present is not None:
            return present
        source, need = item.source, item.source.need
        if isinstance(need, Repository):
            assert source.commit is not None
            commit = fetch_checkout(source.address, source.commit, item.path, _part(item.path))
            _write_record(item, commit, {})
            return Fetched(item, "fetched")
        if isinstance(need, PublicFile):
            download(need, item.path, _part(item.path))
            _write_record(item, None, {item.path.name: need.sha256})
            return Fetched(item, "fetched")
        if text is None:
            _write_record(item, None, _make_data(item, need))
        else:
            _write_record(item, None, _make_text_data(item, items, text), text.source)
        return Fetched(item, "made")


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _present(item: Item, text: Text | None) -> Fetched | None:
    """Check an item that exists; None if it does not exist. ReproError if it is something else."""
    source, need = item.source, item.source.need
    commit, sha256 = None, dict[str, str]()
    if not all(file.exists() for file in item.files) or _is_empty(item.path):
        return None
    known = fetch_record(item.record_file)
    if isinstance(need, Repository):
        assert source.commit is not None
        commit = require_checkout(item.path, source.address, source.commit)
    elif isinstance(need, PublicFile):
        _require_digest(item.path, need.sha256)
        sha256 = {item.path.name: need.sha256}
    else:
        _require_index(item.files[-1])
        if text is not None and (known is None or known.source != text.source):
            what = "exists already, so --text would not be used"
            raise ReproError(Problem(what, f"{item.files[0]}:", "move both files away, or leave --text out"))
        return Fetched(item, "there already")
    is_recorded = known is not None and (known.commit, known.sha256) == (commit, sha256)
    if not is_recorded and os.access(item.path.parent, os.W_OK):
        _write_record(item, commit, sha256)
    return Fetched(item, "there already")


def _require_digest(file: Path, sha256: str) -> None:
    if not file.is_file():
        raise ReproError(Problem("exists, and is not a file", f"{file}:", "move it away, or name another path"))
    digest = file_digest(file)
    if digest != sha256:
        what = f"exists with other content: its checksum is {digest}, and must be {sha256}"
        raise ReproError(Problem(what, f"{file}:", "move it away, then repeat the command"))


def _require_index(index: Path) -> None:
    with index.open("rb") as file:
        if file.read(len(HEADER)) != HEADER:
            what = "exists, and is not the index of a data set of Megatron-LM"
            raise ReproError(Problem(what, f"{index}:", "move both files away, then repeat the command"))


def _make_data(item: Item, need: TokenData) -> dict[str, str]:
    """Write a data set of random tokens; return the checksum of each file by name.

    One of the files can exist, if the command was interrupted. ReproError if that file has other content.
    """
    parts = [_part(file) for file in item.files]
    try:
        write_random_tokens(need.vocabulary, *parts)
        digests = {file.name: file_digest(part) for file, part in zip(item.files, parts, strict=True)}
        for file, other in zip(item.files, reversed(item.files), strict=True):
            if file.exists() and file_digest(file) != digests[file.name]:
                what = f"exists without {other.name}"
                raise ReproError(Problem(what, f"{file}:", "add that file, or move this one away"))
        for file, part in zip(item.files, parts, strict=True):
            part.replace(file)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return digests


def _make_text_data(item: Item, items: Sequence[Item], text: Text) -> dict[str, str]:
    """Write the data set of a text; return the checksum of each file by name."""
    for file in item.files:
        if file.exists():
            what = "exists, and the other file of the data set is missing"
            raise ReproError(Problem(what, f"{file}:", "move it away"))
    part = _part(item.path)
    try:
        made = tokenize_text(text, items, part)
        digests = {file.name: file_digest(written) for file, written in zip(item.files, made, strict=True)}
        for file, written in zip(item.files, made, strict=True):
            written.replace(file)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return digests


def _part(path: Path) -> Path:
    """Return the temporary name of a file or folder."""
    return path.with_name(f".{path.name}.part")


def _write_record(item: Item, commit: str | None, sha256: dict[str, str], source: str | None = None) -> None:
    record = {
        "source": source or item.source.address,
        "commit": commit,
        "sha256": sha256,
        "fetched": utc_stamp(datetime.now(timezone.utc).replace(tzinfo=None)),
        "user": name_of_user(os.getuid()),
    }
    with written_whole(item.record_file) as part:
        part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Exclude other fetches to this path. A file system without locks excludes nobody."""
    file = path.with_name(f".{path.name}.lock")
    handle = _locked(file, path)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)


def _locked(file: Path, path: Path) -> int:
    """Return the handle of the lock file; ReproError if another command has the lock."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o660)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                os.close(handle)
                if not isinstance(error, BlockingIOError):
                    raise
                hint = "wait until it has ended"
                raise ReproError(Problem("another command fetches this", f"{path}:", hint)) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), file.stat()):
                return handle
        os.close(handle)  # the command that had the lock has removed its file
