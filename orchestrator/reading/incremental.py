"""Incremental reading of an attempt's log files: only what is new, or everything if a file is not the same any more."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.job_dir import open_job_file
from orchestrator.ledger.measurements import FileOffset
from orchestrator.megatron.logs.columns import IterationLines
from orchestrator.reading.facts import LogFacts, merged_facts
from orchestrator.reading.logs import LogFile, log_files
from orchestrator.reading.parse import Part, effective_of, read_part

FINGERPRINT_BYTES = 4096
"""Bytes at a file's beginning, and before its offset, that identify it: a rewritten log does not have both again."""


@dataclass(frozen=True, slots=True)
class NewContent:
    """New content of an attempt's log files.

    `files` are the offsets after reading, `lines` the new iteration lines, `facts` all facts so far. If not
    `continues`, earlier lines do not count any more, and `lines` are all lines. `warnings` are one line each.
    """

    files: dict[str, FileOffset]
    lines: IterationLines
    facts: LogFacts
    continues: bool
    warnings: tuple[str, ...] = ()


def read_new(folder: Path, before: Mapping[str, FileOffset], *, final: bool, warmup_iterations: int = 0) -> NewContent:
    """Read the log files of a folder from the offsets `before`.

    An incomplete last line is left for the next time unless this is `final`. If each rank has a log file, several files
    may have the same iterations, so only the first file with iterations gives lines. If all files are gone, the facts
    so far still count. Raise Unreadable or ReproError as `log_files` does.
    """
    files = log_files(folder)
    facts = _stored_facts(before)
    if facts and not files:
        return NewContent(dict(before), IterationLines(), merged_facts(list(facts.values())), True)
    if facts and _are_the_same(files, before):
        read = [
            _read(file, before.get(file.name), facts.get(file.name, LogFacts()), final, warmup_iterations)
            for file in files
        ]
        source = next((name for name in (file.name for file in files) if _has_lines(facts.get(name))), None)
        if source is None or source == _source(read):
            return _new_content(read, continues=source is not None)
        # An earlier file has its first iterations now. The lines of the other file do not count any more.
    return _new_content([_read(file, None, LogFacts(), final, warmup_iterations) for file in files], continues=False)


@dataclass(frozen=True, slots=True)
class _FileContent:
    """New content of one file."""

    offset: FileOffset
    facts: LogFacts
    parts: list[Part]
    warnings: Sequence[str] = ()


def _new_content(files: Sequence[_FileContent], continues: bool) -> NewContent:
    source = _source(files)
    parts = next((file.parts for file in files if file.offset.name == source), [])
    return NewContent(
        files={file.offset.name: file.offset for file in files},
        lines=effective_of(parts),
        facts=merged_facts([file.facts for file in files]),
        continues=continues and not any(part.is_restarted for part in parts),
        warnings=tuple(warning for file in files for warning in file.warnings),
    )


def _source(files: Sequence[_FileContent]) -> str | None:
    """Return the name of the first file with iterations."""
    return next((file.offset.name for file in files if _has_lines(file.facts)), None)


def _has_lines(facts: LogFacts | None) -> bool:
    return facts is not None and facts.last_iteration is not None


def _stored_facts(before: Mapping[str, FileOffset]) -> dict[str, LogFacts]:
    """Return the stored facts by file; nothing if another version of the program stored them."""
    try:
        return {name: LogFacts.from_json(file.facts) for name, file in before.items()}
    except ValueError:
        return {}


def _read(
    file: LogFile, before: FileOffset | None, facts: LogFacts, final: bool, warmup_iterations: int
) -> _FileContent:
    """Read one file from its offset."""
    start = end = before.bytes_read if before else 0
    if before is not None and file.size <= start:
        return _FileContent(before, facts, [])
    parts: list[Part] = []
    blocks = file.blocks(start)
    for block in blocks:
        part = read_part(block, facts, final, warmup_iterations)
        facts, end = part.facts, end + part.consumed
        parts.append(part)
    if before is not None and end == start:
        return _FileContent(before, facts, parts, blocks.warnings)
    offset = FileOffset(file.name, str(file.inode), end, _fingerprint(file, end), facts.as_json())
    return _FileContent(offset, facts, parts, blocks.warnings)


def _are_the_same(files: Sequence[LogFile], before: Mapping[str, FileOffset]) -> bool:
    """Whether each file that was read exists, and still begins with the bytes that were read."""
    by_name = {file.name: file for file in files}
    return all(
        name in by_name
        and str(by_name[name].inode) == old.inode
        and _fingerprint(by_name[name], old.bytes_read) == old.fingerprint
        for name, old in before.items()
    )


def _fingerprint(file: LogFile, end: int) -> str:
    """Return a digest of the bytes at the file's beginning and of those before `end`."""
    opened = open_job_file(file.folder, file.name)
    if opened is None:
        return ""
    with opened:
        head = opened.read(min(end, FINGERPRINT_BYTES))
        opened.seek(max(0, end - FINGERPRINT_BYTES))
        return hashlib.sha256(head + opened.read(min(end, FINGERPRINT_BYTES))).hexdigest()[:32]
