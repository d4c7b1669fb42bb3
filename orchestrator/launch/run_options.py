"""Options of a run as requested, the plan that they resolve to, and the check that a job makes before it starts.

A job makes its check in bash (templates/gate.sh.j2). The patterns of this module are rendered into it. `repro` counts
failures by the same patterns, and has the verdict of a canary.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import ReproError
from orchestrator.files import read_record, tail_bytes
from orchestrator.launch.executors import NOT_STARTED, TIMED_OUT
from orchestrator.ledger.rows import JobRow
from orchestrator.reading.cause_kinds import KINDS, NO_GPU_MEMORY, TIME_LIMIT
from orchestrator.reading.failure import Failure
from orchestrator.reading.reader import reader_of

CANCELLED = 143
"""Exit code of a job that SIGTERM ended."""

LOG_TAIL_BYTES = 1 << 20
"""End of a log in which the class of a failure is searched."""

FAILURE_PATTERNS: tuple[tuple[str, str], ...] = tuple(
    (failure.value, next(pattern.pattern for name, pattern in KINDS if name == kind).replace("(?:", "("))
    for failure, kind in ((Failure.GPU_OOM, NO_GPU_MEMORY), (Failure.TIMEOUT, TIME_LIMIT))
)
"""Failure classes that the log decides, the most specific first, with their patterns (extended regular expressions)."""


class FollowedJob(NamedTuple):
    """A job of this machine that must end before a run starts, and the process id of the queue that runs it."""

    folder: str
    queue: int


class FileCheck(NamedTuple):
    """A pattern (extended regular expression) that a line of a job's file must match, or that no line may match."""

    file: str
    pattern: str
    must_match: bool = True


@dataclass(frozen=True, slots=True)
class CanaryJob:
    """The job that must pass its check before the other jobs of a run start. `folder` has its log and its records.

    `checks` are what a verified or partial job has in its end record and its log. `whole` is the pattern of the line
    with which the log of a complete run ends; without one, the log decides nothing here. `has_samples`: the log has
    lines of iterations, whose samples are counted (templates/gate.sh.j2).
    """

    label: str
    folder: Path
    checks: tuple[FileCheck, ...] = ()
    whole: str | None = None
    has_samples: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """The check that each job of a run makes before it starts: the ended jobs of the run, and the canary.

    `warm_up` is the number of iterations that are no samples.
    """

    run_folder: Path
    stop_after: int | None = None
    canary: CanaryJob | None = None
    warm_up: int = 0


def failure_kind(folder: Path, has_enough: Callable[[bytes], bool]) -> str | None:
    """Return how the job in this folder failed: a class from its log, else its exit code.

    None if the job has no end record, ended with 0, did not start, was cancelled, or reached its time limit with enough
    samples. `has_enough` returns whether the end of a log has them.
    """
    try:
        end = read_record(folder / "end")
        if end is None or end.exit_code in (0, NOT_STARTED):
            return None
        log = tail_bytes(folder, "log.txt", LOG_TAIL_BYTES)
    except ReproError:  # a link or a pipe is not read
        return None
    for failure, pattern in FAILURE_PATTERNS:
        if re.search(pattern.encode(), log):
            return None if failure == Failure.TIMEOUT.value and has_enough(log) else failure
    if end.exit_code == CANCELLED or (end.exit_code == TIMED_OUT and has_enough(log)):
        return None
    return f"exit code {end.exit_code}"


def equal_failures(jobs: Iterable[JobRow]) -> tuple[int, str]:
    """Return the most frequent kind of failure among these jobs, and its count; (0, "") if no job failed."""

    def kind(job: JobRow) -> str | None:
        reader = reader_of(job.program, job.spec.program)
        return failure_kind(Path(job.folder), lambda log: reader.has_enough(log, job.spec))

    kinds = Counter(filter(None, map(kind, jobs)))
    return max(((count, kind) for kind, count in kinds.items()), default=(0, ""))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run as the user requests them.

    `rerun_verified` measures verified jobs again. `rerun_classes` are failure classes that run again, whatever their
    policy. `only_failed` leaves jobs alone that never ran. `max_parallel` limits the running jobs of the run. `after`
    contains scheduler ids, and `follows` local jobs, that must end first. `stop_after` is the number of equal failures
    after which no other job starts. `warm_up` compiles kernels first in any case. `settings` are the values of `--set`.
    `own_jobs` are jobs that the same command has submitted for another experiment.
    """

    rerun_verified: bool = False
    rerun_classes: frozenset[str] = frozenset()
    only_failed: bool = False
    max_parallel: int | None = None
    after: tuple[str, ...] = ()
    follows: tuple[FollowedJob, ...] = ()
    canary: bool = False
    stop_after: int | None = None
    warm_up: bool = False
    settings: tuple[str, ...] = ()
    own_jobs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Resolved options of a run. The ledger stores them for every process that submits jobs of the run later.

    `at_once` is the number of elements of one array that run at the same time. `canary` is a job id. `warm_ups` maps
    the scheduler id of a job that compiles kernels to the jobs that need them. `settings` are the values of `--set`,
    with which failed jobs are planned again. `gate` is rendered and not stored.
    """

    at_once: int = 1
    max_parallel: int | None = None
    after: tuple[str, ...] = ()
    follows: tuple[FollowedJob, ...] = ()
    canary: str | None = None
    stop_after: int | None = None
    warm_ups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    gate: Gate | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the stored fields."""
        stored = dataclasses.asdict(dataclasses.replace(self, gate=None))
        del stored["gate"]
        return stored

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunPlan:
        """Return the plan that `as_json` stored. Jobs that a user submitted by hand have none."""
        words = {name: tuple(value.get(name, ())) for name in ("after", "settings")}
        follows = tuple(FollowedJob(*job) for job in value.get("follows", ()))
        warm_ups = {name: tuple(jobs) for name, jobs in value.get("warm_ups", {}).items()}
        return cls(**{**value, **words, "follows": follows, "warm_ups": warm_ups})
