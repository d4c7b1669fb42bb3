"""Reads on in the files of an attempt: what is new since the last look, or all of it where that is another log now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.job_dir import open_job_file
from orchestrator.ledger.measurements import FileRead
from orchestrator.megatron.logs.iteration import IterationLines
from orchestrator.reading.facts import LogFacts, together
from orchestrator.reading.logs import LogFile, log_files
from orchestrator.reading.parse import Part, latest, read_part

KNOWN_BY_BYTES = 4096
"""Of a file's beginning, and of what was read of it last: a log that was written anew does not have both again."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What a look gave: how far each file is read now, the interval lines that are new, and all facts so far.

    Without `keeps` the lines are all there are: what was read before does not count any more. `complaints` are what
    could not be read, each in one line.
    """

    files: dict[str, FileRead]
    lines: IterationLines
    facts: LogFacts
    keeps: bool
    complaints: tuple[str, ...] = ()


def follow(folder: Path, before: Mapping[str, FileRead], *, final: bool) -> Followed:
    """Read on from `before`. The last line may still be growing, and is left for the next look unless this is `final`.

    The lines are those of the first file that has any: where each rank has a file, several may say the same. What was
    read of files that are all gone still counts. Unreadable or ReproError as `log_files`.
    """
    files = log_files(folder)
    known = _facts_of(before)
    if known and not files:
        return Followed(dict(before), IterationLines(), together(list(known.values())), True)
    if known and _are_still_those(files, before):
        read = {file.name: _read(file, before.get(file.name), known.get(file.name), final) for file in files}
        source = _first_with_lines(files, known)
        if source is None or source == _first_with_lines(files, _facts(read)):
            return _followed(files, read, is_first=source is None)
        # One that comes earlier has its first lines now: those of the other do not count any more.
    return _followed(files, {file.name: _read(file, None, None, final) for file in files}, is_first=True)


@dataclass(frozen=True, slots=True)
class _Read:
    """One file after a look."""

    file: FileRead
    facts: LogFacts
    parts: list[Part]
    complaints: Sequence[str]


def _followed(files: Sequence[LogFile], read: Mapping[str, _Read], is_first: bool) -> Followed:
    facts = _facts(read)
    source = _first_with_lines(files, facts)
    parts = read[source].parts if source is not None else []
    keeps = not is_first and not any(part.begins_anew for part in parts)
    return Followed(
        files={name: one.file for name, one in read.items()},
        lines=latest(parts),
        facts=together(list(facts.values())),
        keeps=keeps,
        complaints=tuple(complaint for one in read.values() for complaint in one.complaints),
    )


def _facts(read: Mapping[str, _Read]) -> dict[str, LogFacts]:
    return {name: one.facts for name, one in read.items()}


def _facts_of(before: Mapping[str, FileRead]) -> dict[str, LogFacts]:
    """Nothing where another version of the program has stored them."""
    try:
        return {name: LogFacts.from_json(file.facts) for name, file in before.items()}
    except ValueError:
        return {}


def _read(file: LogFile, before: FileRead | None, facts: LogFacts | None, final: bool) -> _Read:
    """Read on in one file."""
    facts = facts or LogFacts()
    start = end = before.bytes_read if before else 0
    if before is not None and file.size <= start:
        return _Read(before, facts, [], ())
    parts: list[Part] = []
    blocks = file.blocks(start)
    for block in blocks:
        part = read_part(block, facts, final)
        facts, end = part.facts, end + part.consumed
        parts.append(part)
    if before is not None and end == start:
        return _Read(before, facts, parts, blocks.complaints)
    now = FileRead(file.name, str(file.inode), end, _fingerprint(file, end), facts.as_json())
    return _Read(now, facts, parts, blocks.complaints)


def _are_still_those(files: Sequence[LogFile], before: Mapping[str, FileRead]) -> bool:
    """Whether each file that was read is there, and begins with what was read of it."""
    now = {file.name: file for file in files}
    return all(
        name in now and str(now[name].inode) == old.inode and _fingerprint(now[name], old.bytes_read) == old.fingerprint
        for name, old in before.items()
    )


def _fingerprint(file: LogFile, end: int) -> str:
    """Of the bytes at the file's beginning, and of those before `end`, as many as there are."""
    opened = open_job_file(file.folder, file.name)
    if opened is None:
        return ""
    with opened:
        head = opened.read(min(end, KNOWN_BY_BYTES))
        opened.seek(max(0, end - KNOWN_BY_BYTES))
        return hashlib.sha256(head + opened.read(min(end, KNOWN_BY_BYTES))).hexdigest()[:32]


def _first_with_lines(files: Sequence[LogFile], facts: Mapping[str, LogFacts]) -> str | None:
    names = (file.name for file in files if file.name in facts)
    return next((name for name in names if facts[name].last_iteration is not None), None)
