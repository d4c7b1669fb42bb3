"""Submissions whose sender is gone: the token that each carries tells whether the scheduler has it."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from orchestrator.errors import ReproError, Unreachable
from orchestrator.job_record import read_record
from orchestrator.launch.local_state import find_process
from orchestrator.launch.policy import is_being_sent
from orchestrator.launch.provenance import user_name
from orchestrator.launch.sending import comment_of, only_one
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.submissions import Unsettled, record_back_in_turn, record_submission, unsettled
from orchestrator.slurm.job_ids import base_id
from orchestrator.slurm.query import QueryAnswer, find_by_comments

ANOTHER_HOST_GRACE = timedelta(minutes=5)
"""How long a submission from another login node may take before we look for it ourselves."""
WHY_IN_TURN = "interrupted before the scheduler had it; `repro submit` again, or `repro wait`, sends it"


@dataclass(frozen=True, slots=True)
class Settled:
    """`has_news`: something is known now that was not; `complaints`: what cannot be known yet."""

    has_news: bool
    complaints: tuple[str, ...]


def settle(ledger: Ledger, schedulers: Collection[str]) -> Settled:
    """Find out what became of submissions that somebody began and did not end.

    Only the user who submitted can ask for certain: a site may hide one user's jobs from another.
    """
    begun = [one for one in unsettled(ledger) if one.scheduler in schedulers and not _may_still_be_at_it(one)]
    mine = [one for one in begun if one.user in (None, user_name())]
    complaints = [
        f"a submission of {user} was cut off; {user}'s next command finds out what became of it"
        for user in sorted({str(one.user) for one in begun if one not in mine})
    ]
    complaints += [line for one in mine if one.scheduler == "local" for line in _settle_here(ledger, one)]
    complaints += _settle_slurm(ledger, [one for one in mine if one.scheduler == "slurm"])
    return Settled(bool(mine), tuple(complaints))


def is_here(host: str) -> bool:
    """A local job is seen through its processes, which other machines of a shared file system do not have."""
    return host == socket.gethostname()


def _may_still_be_at_it(one: Unsettled) -> bool:
    """Whether the sender lives, or the sbatch that it has left behind: what that one says is still to come."""
    if is_here(one.host):
        return is_being_sent(one.host, one.pid, one.created_at) or (
            one.scheduler == "slurm" and find_process(comment_of(one.token)) is not None
        )
    return now() - one.created_at < ANOTHER_HOST_GRACE


def _settle_here(ledger: Ledger, one: Unsettled) -> list[str]:
    if not is_here(one.host):
        return [f"jobs were being started on {one.host}, which alone can see them"]
    try:
        starts = [read_record(Path(folder) / "start") for folder in one.folders]
    except ReproError as error:
        return [str(error)]
    started = [start.scheduler_id.partition("_")[0] for start in starts if start is not None]
    queue = started[0] if started else find_process(Path(one.file).name)
    if queue is None:
        record_back_in_turn(ledger, one.token, WHY_IN_TURN)
    else:
        record_submission(ledger, one.token, queue)
    return []


def _settle_slurm(ledger: Ledger, begun: Sequence[Unsettled]) -> list[str]:
    if not begun:
        return []
    try:
        answer = find_by_comments([comment_of(one.token) for one in begun])
    except Unreachable as error:
        return [str(error)]
    complaints: list[str] = []
    for one in begun:
        ids = _ids(answer, comment_of(one.token))
        if ids:
            record_submission(ledger, one.token, only_one(ids))
        elif not answer.complaints:
            record_back_in_turn(ledger, one.token, WHY_IN_TURN)
        else:
            complaints.append(f"whether submission {one.token} reached the scheduler is not known yet")
    return [*answer.complaints, *complaints]


def _ids(answer: QueryAnswer, comment: str) -> set[str]:
    return {base_id(job_id) for job_id, record in answer.records.items() if record.comment == comment}
