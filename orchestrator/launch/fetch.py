"""Fetch of a program's code and data to the shared file system, on this machine and without a job.

A rendered script, `fetch.sh`, gets code and files. The program makes data here: random tokens, or those of a text.
Each item is written under a temporary name in its folder, checked, and renamed. What exists is never changed. A
repeated command continues an interrupted one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from orchestrator.clusters.program import OFFLINE_HINT, FetchRecord, Item, stored_record
from orchestrator.errors import EXIT_UNREACHABLE, Problem, ReproError, Unreachable, require_none
from orchestrator.files import locked, written_whole
from orchestrator.identity import name_of_user
from orchestrator.launch.preflight import require_checkout
from orchestrator.programs.record import PublicFile, Repository, TextFile, TokenData
from orchestrator.text import utc_stamp

_HINTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space, then repeat the command")
_UNWRITABLE = "name a folder that you can write to"


@dataclass(frozen=True, slots=True)
class Fetched:
    """An item that is in its place: fetched or made now, or there before."""

    item: Item
    how: Literal["fetched", "made", "there already"]


def render_fetch(items: Sequence[Item], templates: Path, again: str) -> str:
    """Return the script that fetches code and files; `again` is the command that checks them and makes data. Pure."""
    remote = [item for item in items if not isinstance(item.source.need, TokenData)]
    from orchestrator.launch.templates import templates_in  # not to list what programs need

    return templates_in(templates).render("fetch.sh.j2", items=remote, again=again, offline=OFFLINE_HINT)


def fetch_items(
    items: Sequence[Item],
    templates: Path,
    again: str,
    text: TextFile | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Iterator[Fetched]:
    """Fetch the items that are missing, check the others, and yield each one that is in its place.

    Data are random tokens, or those of the text. `notify` gets the output of the script. At the end, raise ReproError
    with the problem of each other item; Unreachable if all of these lack a connection.
    """
    errors: list[ReproError] = []
    missing: list[Item] = []
    for item in items:
        with _collected(errors, item):
            present = _present(item, text)
            if present is not None:
                yield present
            else:
                missing.append(item)
    remote = [item for item in missing if not isinstance(item.source.need, TokenData)]
    if remote:
        errors += _run(render_fetch(remote, templates, again), notify)
    for item in missing:
        with _collected(errors, item):
            if isinstance(item.source.need, TokenData):
                yield _made(item, item.source.need, items, text)
            elif _present(item, text) is not None:
                yield Fetched(item, "fetched")
    if errors:
        problems = dict.fromkeys(problem for error in errors for problem in error.problems)
        kind = Unreachable if all(isinstance(error, Unreachable) for error in errors) else ReproError
        raise kind(*problems)


@contextlib.contextmanager
def _collected(errors: list[ReproError], item: Item) -> Iterator[None]:
    """Add an error of the block to `errors`."""
    try:
        yield
    except ReproError as error:
        errors.append(error)
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        path = error.filename2 or error.filename or item.path
        errors.append(ReproError(Problem(what, f"{path}:", _HINTS.get(error.errno or 0, _UNWRITABLE))))


def _run(script: str, notify: Callable[[str], None]) -> list[ReproError]:
    """Run the script. Return an error with its lines on stderr, if it fails."""
    command = [shutil.which("bash") or "/bin/bash", "-c", script, "fetch.sh"]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as faults,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=faults, text=True, errors="replace"
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            notify(line.rstrip("\n"))
        code = process.wait()
        faults.seek(0)
        lines = [line.rstrip("\n").partition(". Hint: ") for line in faults]
    if code == 0:
        return []
    problems = [Problem(what, hint=hint or None) for what, _, hint in lines]
    kind = Unreachable if code == EXIT_UNREACHABLE else ReproError
    return [kind(*(problems or [Problem(f"fetch.sh ended with exit code {code}")]))]


def item_state(item: Item) -> str:
    """Return "there", "missing", or what is wrong. Reads no content of files, and needs no network."""
    if not any(os.path.lexists(file) for file in item.files) or (item.path.is_dir() and not any(item.path.iterdir())):
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


def _made(item: Item, need: TokenData, items: Sequence[Item], text: TextFile | None) -> Fetched:
    with locked(item.path):
        present = _present(item, text)  # another command may have made it in the meantime
        if present is None:
            _write_record(item, None, _make_data(item, need, items, text), need.origin(text) if text else None)
        return present or Fetched(item, "made")


def _present(item: Item, text: TextFile | None) -> Fetched | None:
    """Check an item that exists; None if it does not exist. ReproError if it is something else."""
    source, need = item.source, item.source.need
    commit, sha256 = None, dict[str, str]()
    if not all(file.exists() for file in item.files) or (item.path.is_dir() and not any(item.path.iterdir())):
        return None
    known = stored_record(FetchRecord, item.record_file)
    if isinstance(need, Repository):
        assert source.commit is not None
        commit = require_checkout(item.path, source.address, source.commit)
    elif isinstance(need, PublicFile):
        location, sha256 = f"{item.path}:", {item.path.name: need.sha256}
        if not item.path.is_file():
            raise ReproError(Problem("exists, and is not a file", location, "move it away, or name another path"))
        if (digest := _digest(item.path)) != need.sha256:
            what = f"exists with other content: its checksum is {digest}, and must be {need.sha256}"
            raise ReproError(Problem(what, location, "move it away, then repeat the command"))
    else:
        index = item.files[-1]
        with index.open("rb") as file:
            if file.read(len(need.header)) != need.header:
                what = "exists, and is not the index of such a data set"
                raise ReproError(Problem(what, f"{index}:", "move both files away, then repeat the command"))
        if text is not None and (known is None or known.source != need.origin(text)):
            what = "exists already, so --text would not be used"
            raise ReproError(Problem(what, f"{item.files[0]}:", "move both files away, or leave --text out"))
        return Fetched(item, "there already")
    is_recorded = known is not None and (known.commit, known.sha256) == (commit, sha256)
    if not is_recorded and os.access(item.path.parent, os.W_OK):
        _write_record(item, commit, sha256)
    return Fetched(item, "there already")


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _make_data(item: Item, need: TokenData, items: Sequence[Item], text: TextFile | None) -> dict[str, str]:
    """Write a data set of random tokens or of the text; return the checksum of each file by name.

    One of the files can exist, if the command was interrupted. ReproError if random tokens need other content there.
    """
    for file in item.files if text is not None else ():
        if file.exists():
            what = "exists, and the other file of the data set is missing"
            raise ReproError(Problem(what, f"{file}:", "move it away"))
    part = item.path.with_name(f".{item.path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        made = need.make(text, {one.source.need.field: one.path for one in items}, part)
        digests = {file.name: _digest(written) for file, written in zip(item.files, made, strict=True)}
        for file, other in zip(item.files, reversed(item.files), strict=True):
            if file.exists() and _digest(file) != digests[file.name]:
                what = f"exists without {other.name}"
                raise ReproError(Problem(what, f"{file}:", "add that file, or move this one away"))
        for file, written in zip(item.files, made, strict=True):
            written.replace(file)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return digests


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


def require_usable_text(text: TextFile, program: str, items: Sequence[Item]) -> None:
    """Raise ReproError if there is no such text or Python, or if the program has no vocabulary for text."""
    problems = []
    if not text.file.is_file():
        problems.append(Problem("no such file", f"--text {text.file}:"))
    if shutil.which(text.python) is None:
        problems.append(Problem("no such program", f"--python {text.python}:", "name a Python that has torch"))
    fields = {item.source.need.field for item in items}
    if not any(
        isinstance(item.source.need, TokenData) and fields.issuperset(item.source.need.of_text) for item in items
    ):
        hint = "leave it out, or make the data by hand: fetch accepts existing data"
        problems.append(Problem(f"{program} cannot use a text as its data here", "--text:", hint))
    require_none(problems)
