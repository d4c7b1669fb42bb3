"""Submissions whose sender is gone: the token that each carries tells whether the scheduler has it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from orchestrator.errors import ReproError, Unreachable
from orchestrator.job_files import tail_bytes
from orchestrator.job_record import read_record
from orchestrator.launch.local_state import find_process
from orchestrator.launch.policy import sender_is_alive
from orchestrator.launch.sending import comment_of, only_one
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.submissions import Unsettled, record_back_in_turn, record_submission, unsettled
from orchestrator.ledger.unanswered import time_unsettled_s
from orchestrator.machine_identity import Place, place_of, seconds_since_boot, this_machine_identity
from orchestrator.slurm.controller import cluster_identity
from orchestrator.slurm.job_ids import base_id
from orchestrator.slurm.query import QueryAnswer, find_by_comments

GRACE = timedelta(minutes=5)
"""How long a submission may take whose sender cannot be seen from here, and how long a job may take to write its first
record where only the queue can be asked."""
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
    begun = [one for one in unsettled(ledger) if one.scheduler in schedulers and not is_being_made(ledger, one)]
    mine = [one for one in begun if ledger.is_own(one.user)]
    complaints = [
        f"a submission of {user} was cut off; {user}'s next command finds out what became of it"
        for user in sorted({str(one.user) for one in begun if one not in mine})
    ]
    complaints += [line for one in mine if one.scheduler == "local" for line in _settle_here(ledger, one)]
    complaints += _settle_slurm(ledger, [one for one in mine if one.scheduler == "slurm"])
    return Settled(bool(mine), tuple(complaints))


def is_here(machine: str | None, host: str) -> bool:
    """Whether local jobs of this machine are seen from here: through their processes, which a reboot has ended."""
    return place_of(machine, host) is not Place.ELSEWHERE


def is_being_made(ledger: Ledger, one: Unsettled) -> bool:
    """Whether the sender, or the sbatch that it left behind, still runs or may do so where nobody here can see it."""
    alive = sender_is_alive(one)
    if alive is not None:
        return alive or (one.scheduler == "slurm" and find_process(comment_of(one.token)) is not None)
    return one.scheduler == "slurm" and _waited_s(ledger, one) < GRACE.total_seconds()


def _waited_s(ledger: Ledger, one: Unsettled) -> float:
    """Return for how many seconds this machine has waited for an answer about a submission."""
    waited = time_unsettled_s(ledger, one.attempt_ids, this_machine_identity().boot_id, seconds_since_boot())
    return min(waited.values(), default=0.0)


def _settle_here(ledger: Ledger, one: Unsettled) -> list[str]:
    if not is_here(one.machine, one.host):
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
        here = cluster_identity()
        asked = [one for one in begun if one.slurm_cluster in (None, here)]
        answer = find_by_comments([comment_of(one.token) for one in asked])
    except Unreachable as error:
        return [str(error)]
    complaints = [
        f"a submission to Slurm cluster {one.slurm_cluster} was cut off; SLURM_CONF here means {here}"
        for one in begun
        if one not in asked
    ]
    for one in asked:
        try:
            ids, recorded = _ids(answer, comment_of(one.token)), recorded_ids(one.folders)
        except ReproError as error:
            complaints.append(str(error))
            continue
        if ids:
            record_submission(ledger, one.token, only_one(ids))
        elif recorded:  # no further id is cancelled: what a folder contains is no proof for that
            record_submission(ledger, one.token, min(recorded, key=int))
        elif not answer.complaints or (answer.lists_queue and _waited_s(ledger, one) >= GRACE.total_seconds()):
            # A job that left the queue would have left a record. If it is late all the same, its claim keeps a second
            # copy in the same folder from starting.
            record_back_in_turn(ledger, one.token, WHY_IN_TURN)
        else:
            complaints.append(f"whether submission {one.token} reached the scheduler is not known yet")
    return [*(answer.complaints if asked else ()), *complaints]


def _ids(answer: QueryAnswer, comment: str) -> set[str]:
    return {base_id(job_id) for job_id, record in answer.records.items() if record.comment == comment}


def recorded_ids(folders: Sequence[str]) -> set[str]:
    """Return the scheduler's ids, without array indexes, that jobs wrote into their own folders when they started."""
    ids: set[str] = set()
    for folder in folders:
        claimed = tail_bytes(Path(folder), "claimed", 100).decode(errors="replace").strip()
        if re.fullmatch(r"[0-9]+(_[0-9]+)?", claimed):
            ids.add(base_id(claimed))
    return ids
