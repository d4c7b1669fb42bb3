"""Whether a job gets another attempt: what is there already, how it failed, and what was asked for; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from orchestrator.launch.local import began_at
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import Disposition, Latest
from orchestrator.ledger.tables import FAILED, IN_TURN, OPEN, VERIFIED
from orchestrator.machine_identity import Location, place_of, start_ticks
from orchestrator.reading.failure import BACK_OFF_S, MOST_ATTEMPTS, POLICIES, Failure

if TYPE_CHECKING:
    from orchestrator.planning.plan import Plan  # a command that only looks has no need of the planner


@dataclass(frozen=True, slots=True)
class RerunPolicy:
    """What is to be run again though it has ended: `verified` measures what is verified once more; `classes` are
    failures that a person has asked for by name, whatever their policy; `only_failed` leaves alone what never ran.
    `is_slurms`: Slurm itself runs again what lost a node or was preempted, and once for one fault is enough.
    """

    verified: bool = False
    classes: frozenset[Failure] = field(default_factory=frozenset)
    only_failed: bool = False
    is_slurms: bool = False


def standing_of(plan: Plan, latest: Latest | None, again: RerunPolicy) -> Disposition:
    """What a run finds this job to be."""
    if latest is None:
        return Disposition.LEFT if again.only_failed else Disposition.MISSING
    if latest.phase in OPEN:
        return Disposition.MISSING if is_orphan(latest) and not again.only_failed else Disposition.UNDER_WAY
    if latest.verdict is None:  # it has ended and its log was not read yet: it may have been good
        return Disposition.UNDER_WAY
    failure = failure_named(latest.failure)
    if again.verified or (latest.verdict != VERIFIED and failure in again.classes):
        return Disposition.MISSING
    if latest.verdict == VERIFIED or fails_as_published(plan, latest.failure):
        return Disposition.DONE
    if again.classes or latest.submitted >= MOST_ATTEMPTS:
        return Disposition.LEFT
    if again.is_slurms and failure in (Failure.NODE_FAIL, Failure.PREEMPTED):
        return Disposition.LEFT
    return Disposition.MISSING if POLICIES[failure].again else Disposition.LEFT


def fails_as_published(plan: Plan, failure: str | None) -> bool:
    """Whether it failed as its source says that it does."""
    expected = plan.case.expected
    return expected is not None and expected.outcome == "oom" and failure == Failure.GPU_OOM.value


def is_orphan(latest: Latest) -> bool:
    """Whether an attempt waits for a sender that is gone. One that cannot be seen is taken to be gone: a claim is safe,
    whoever else tries.
    """
    return latest.state == IN_TURN and not sender_is_alive(latest)


class HasSubmitter(Protocol):
    """An attempt or submission with the process that wrote it down."""

    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def pid_start_ticks(self) -> int | None: ...
    @property
    def machine(self) -> str | None: ...
    @property
    def created_at(self) -> datetime: ...


def sender_is_alive(sent: HasSubmitter) -> bool | None:
    """Return whether the process that wrote this down still runs; None if its processes cannot be seen from here.

    A process that started at another time has only been given its number.
    """
    if sent.pid is None:
        return False
    place = place_of(sent.machine, sent.host)
    if place is not Location.HERE:
        return None if place is Location.ELSEWHERE else False
    if sent.pid_start_ticks is not None:
        return start_ticks(sent.pid) == sent.pid_start_ticks
    began = began_at(sent.pid)
    return began is not None and began <= sent.created_at


def failure_named(name: str | None) -> Failure:
    """The class by its name; what an older repro recorded has none."""
    return Failure(name) if name in {one.value for one in Failure} else Failure.PROGRAM


def pause_before(submitted: int, failure: Failure) -> int:
    """Seconds for which the next submission is held back, after so many."""
    if not POLICIES[failure].again or submitted == 0:
        return 0
    return BACK_OFF_S[min(submitted - 1, len(BACK_OFF_S) - 1)]


def may_mend_itself(row: JobRow) -> bool:
    """Whether a failed job is to be run again by whoever waits for it: what has cost something and was not its fault.

    What was never submitted, was stopped, or found its GPU in use would meet the same obstacle at once.
    """
    if row.verdict != FAILED or row.number >= MOST_ATTEMPTS:
        return False
    failure = failure_named(row.failure)
    if failure in (Failure.NODE_FAIL, Failure.PREEMPTED):
        return not row.is_requeued
    return failure in (Failure.LOST, Failure.IMAGE, Failure.GPU_FAULT)
