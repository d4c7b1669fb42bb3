"""Reads on in the logs of what is under way or has just ended, and records iterations, and at the end a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.errors import ReproError
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow, rows_of_attempts, unjudged_attempts
from orchestrator.ledger.measurements import (
    FileRead,
    Measurement,
    ReadOn,
    files_read,
    iterations_of,
    places,
    record_measurements,
)
from orchestrator.ledger.tables import ENDED, RUNNING
from orchestrator.masking import without_known
from orchestrator.reading.following import follow
from orchestrator.reading.job_secrets import job_secrets
from orchestrator.reading.measuring import measured

AT_ONCE = 100
"""Attempts whose rows are in memory together, however many there are."""
LINES_AT_ONCE = 20_000
"""Interval lines that are written in one transaction; more, where one attempt has more."""
LOOKS = 3
"""At an attempt that another terminal reads at the same time; then it is left to that one."""

_HEAD = 4
"""Stored lines of a running attempt that are looked at again: whether the first ones count, the next ones tell."""
_ONLY_TO_GO_ON = ("version", "settings", "unfinished")
"""Facts, most of them by size, that are not kept once there is a verdict."""


def collect(ledger: Ledger, *, running: bool = True) -> tuple[str, ...]:
    """Read what is new of every attempt that has no verdict yet; with `running` also of those that have not ended.

    Returns what could not be read: a log that this user may not see is no empty log, and nothing is concluded from it.
    Nothing is written where nothing is new. A verdict is final: its attempt is never read again.
    """
    complaints: dict[str, None] = {}
    ids = unjudged_attempts(ledger, (RUNNING, ENDED) if running else (ENDED,))
    for start in range(0, len(ids), AT_ONCE):
        left = ids[start : start + AT_ONCE]
        for _ in range(LOOKS):
            left = _collect(ledger, left, complaints) if left else []
    return tuple(complaints)


def measure(row: JobRow) -> Measurement:
    """What the files of this attempt say, all of them read anew: the same as many looks at them while they grew."""
    return measured(row, follow(Path(row.folder), {}, final=row.phase == ENDED), ())


def _collect(ledger: Ledger, attempt_ids: Sequence[int], complaints: dict[str, None]) -> list[int]:
    """One look at these attempts; returns those that another terminal has read on in meanwhile."""
    known = files_read(ledger, attempt_ids)
    batch = _Batch(ledger)
    for row in rows_of_attempts(ledger, attempt_ids):
        if row.verdict is not None:  # another terminal's, of a moment ago
            continue
        before, has_ended = known.get(row.attempt_id, {}), row.phase == ENDED
        try:
            followed = follow(Path(row.folder), before, final=has_ended)
        except ReproError as error:
            complaints[str(error)] = None
            continue
        complaints |= dict.fromkeys(followed.complaints)
        if not has_ended and places(followed.files) == places(before):
            continue
        stored = iterations_of(ledger, row.attempt_id, None if has_ended else _HEAD) if followed.keeps else []
        try:
            found = measured(row, followed, stored)
        except ReproError as error:
            complaints[str(error)] = None
            continue
        files = _without_secrets(followed.files, Path(row.folder))
        files = {name: _of_the_end(file) for name, file in files.items()} if has_ended else files
        batch.add(found, ReadOn(before, files, followed.keeps))
    batch.write()
    return batch.moved


def _without_secrets(files: Mapping[str, FileRead], folder: Path) -> dict[str, FileRead]:
    """Return the files with facts that contain no secret of the job's script."""
    secret = job_secrets(folder)
    return {name: replace(file, facts=without_known(file.facts, secret)) for name, file in files.items()}


def _of_the_end(file: FileRead) -> FileRead:
    """Its facts to be looked at, and not to be gone on from."""
    return replace(file, facts={name: fact for name, fact in file.facts.items() if name not in _ONLY_TO_GO_ON})


@dataclass
class _Batch:
    """What is written in one transaction; `moved` are those of which nothing was, as `record_measurements` has them."""

    ledger: Ledger
    measurements: list[Measurement] = field(default_factory=list)
    read_on: dict[int, ReadOn] = field(default_factory=dict)
    lines: int = 0
    moved: list[int] = field(default_factory=list)

    def add(self, found: Measurement, on: ReadOn) -> None:
        self.measurements.append(found)
        self.read_on[found.attempt_id] = on
        self.lines += len(found.iterations)
        if self.lines >= LINES_AT_ONCE:
            self.write()

    def write(self) -> None:
        self.moved += record_measurements(self.ledger, self.measurements, self.read_on)
        self.measurements, self.read_on, self.lines = [], {}, 0
