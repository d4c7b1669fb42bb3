"""Attempts that wait their turn -> the scheduler. Each is claimed first, so that of two senders one sends it.

A scheduler that is slow or away may have taken a job all the same: it is asked for the token before anything is sent
again. One that has no room takes fewer at a time, and the rest waits its turn.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from orchestrator.errors import ReproError, Unreachable
from orchestrator.job_dir import FOLDER_MODE, Unreadable
from orchestrator.launch.executors import LocalScriptExecutor, QueueFull, SlurmScriptExecutor
from orchestrator.launch.run_options import CanaryJob, RunPlan, has_passed
from orchestrator.launch.submission_files import COMMENT, OwnScript, read_own_script, write_sent
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow, PendingAttempt
from orchestrator.ledger.runs import run_row
from orchestrator.ledger.submissions import (
    Submitter,
    claim,
    in_turn,
    record_back_in_turn,
    record_never_submitted,
    record_submission,
    under_way_of,
)
from orchestrator.ledger.tables import OPEN
from orchestrator.machine_identity import own_start_ticks, this_machine_identity
from orchestrator.ownership import user_name
from orchestrator.reading.failure import Failure
from orchestrator.slurm.command import cluster_identity
from orchestrator.slurm.notation import base_id
from orchestrator.slurm.query import cancel_jobs, find_by_comment

PAUSES_S = (2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
"""Between asking a scheduler that does not answer again; after the last it is left to the next command."""


@dataclass(frozen=True, slots=True)
class Reporter:
    """To the person who waits: `tell` says something, `is_interrupted` that they have had enough."""

    tell: Callable[[str], None]
    is_interrupted: Callable[[], bool] = lambda: False


@dataclass(slots=True)
class Sent:
    """What became of a run's attempts: ids of the scheduler, how many it took, and how many have to wait, and why."""

    ids: list[str] = field(default_factory=list)
    jobs: int = 0
    in_turn: int = 0
    why: str | None = None


def comment_of(token: str) -> str:
    return COMMENT + token


def sender() -> Submitter:
    """Return this process, as the sender of what it claims."""
    return Submitter(socket.gethostname(), user_name(), os.getpid(), str(this_machine_identity()), own_start_ticks())


def send(ledger: Ledger, run_id: str, talk: Reporter) -> Sent:
    """Send what waits its turn in a run, as far as there is room.

    ReproError where the scheduler refuses: what it took before stays, and the rest of the run is known not to have been
    submitted. Unreachable where it stays away: the next command settles what it was asked last.
    """
    sent = Sent()
    run_plan = RunPlan.from_json(run_row(ledger, run_id).wishes)
    groups = [list(group) for _, group in groupby(in_turn(ledger, run_id=run_id), key=lambda turn: turn.file)]
    for turns in groups:
        if sent.why is not None or talk.is_interrupted():  # what is larger has to wait behind what is smaller
            sent.in_turn += len(turns)
            continue
        try:
            _send_group(ledger, run_id, turns, run_plan, sent, talk)
        except (Unreachable, Unreadable):  # the scheduler may have accepted the job
            raise
        except ReproError:
            rest = in_turn(ledger, run_id=run_id)
            untried = [turn.attempt_id for turn in rest if ledger.is_own(turn.user)]
            why = "not submitted, because the submission before it failed"
            record_never_submitted(ledger, untried, why, str(Failure.NOT_SUBMITTED))
            raise
    return sent


def _send_group(
    ledger: Ledger, run_id: str, turns: Sequence[PendingAttempt], run_plan: RunPlan, sent: Sent, talk: Reporter
) -> None:
    """One file of the scheduler, in one submission or, where that is too much at once, in several."""
    try:
        script = read_own_script(ledger, turns)
    except ReproError as refused:
        own = [turn.attempt_id for turn in turns if ledger.is_own(turn.user)]
        record_never_submitted(ledger, own, str(refused.problems[0]), str(Failure.NOT_SUBMITTED))
        raise
    if turns[0].scheduler == "local":
        _send_queue(ledger, turns, script, sent)
        return
    rest, size = list(turns), len(turns)
    why = _kept_back(ledger, run_id, turns, run_plan)
    if why is not None:
        sent.in_turn, sent.why = sent.in_turn + len(rest), why
        return
    while rest:
        some = rest[:size]
        words = _dependencies(ledger, run_id, some, run_plan)
        if words is None:
            why = "its canary failed"
            record_never_submitted(ledger, [turn.attempt_id for turn in rest], why, str(Failure.STOPPED))
            return
        try:
            scheduler_id = _send_slice(ledger, some, script, [*_array(some, run_plan), *words], talk)
        except QueueFull as full:
            if size > 1:
                size = max(1, size // 2)
                continue
            sent.in_turn, sent.why = sent.in_turn + len(rest), full.problems[0].what
            return
        if scheduler_id is not None:
            sent.ids.append(scheduler_id)
            sent.jobs += len(some)
        rest = rest[len(some) :]


def _send_slice(
    ledger: Ledger, turns: Sequence[PendingAttempt], script: OwnScript, words: Sequence[str], talk: Reporter
) -> str | None:
    """Submit these attempts. Return the scheduler's id; None if another sender has taken them over."""
    token = secrets.token_hex(8)
    attempts = [turn.attempt_id for turn in turns]
    file, cluster = turns[0].file, cluster_identity()
    if not claim(ledger, attempts, token, sender(), file=file, slurm_cluster=cluster):
        return None
    options = [*turns[0].options, *words]
    _write_sent(ledger, turns, script, token)
    try:
        scheduler_id = _sbatch_somewhere(script, token, options, talk)
    except QueueFull as full:
        record_back_in_turn(ledger, token, full.problems[0].what)
        raise
    except (Unreachable, Unreadable):  # the scheduler may have accepted the job
        raise
    except ReproError as error:
        record_never_submitted(ledger, attempts, error.problems[0].what, str(Failure.REFUSED))
        raise
    if not record_submission(ledger, token, scheduler_id):
        # It took so long that another login node gave it up, and submits these attempts under a token of its own.
        cancel_jobs([scheduler_id])
        talk.tell(f"job {scheduler_id} was cancelled: its submission had been given up, and made again elsewhere")
        return None
    return scheduler_id


def _sbatch_somewhere(script: OwnScript, token: str, options: Sequence[str], talk: Reporter) -> str:
    """Not on the nodes that failed before; but where there are not enough others, on any."""
    anywhere = [word for word in options if not word.startswith("--exclude=")]
    try:
        return _sbatch(script, token, options, talk)
    except ReproError as error:
        if len(anywhere) == len(options) or isinstance(error, (QueueFull, Unreachable)):
            raise
        talk.tell(f"{error.problems[0].what}; again on any node, also those where it failed")
    return _sbatch(script, token, anywhere, talk)


def _sbatch(script: OwnScript, token: str, options: Sequence[str], talk: Reporter) -> str:
    """Submit until there is an answer; before each new try the scheduler is asked whether it has the job already."""
    executor, comment = SlurmScriptExecutor(script.file.parent), comment_of(token)
    pauses = iter(PAUSES_S)
    sent_again = False
    while True:
        try:
            job_id = executor.submit_script(script.text, comment, options, script.arguments)
        except Unreachable as away:
            found = _look_for(comment, away, pauses, talk)
            if found:
                return keep_first_cancel_rest(found)
            sent_again = True
            continue
        return _alone(job_id, comment) if sent_again else job_id


def _look_for(comment: str, away: Unreachable, pauses: Iterator[float], talk: Reporter) -> set[str]:
    """Ids of the jobs with this comment, once the scheduler answers again; Unreachable when patience ends.

    A controller that wakes up may answer this before it takes the job that has waited longer: it is asked twice.
    """
    answers = 0
    for pause_s in pauses:
        talk.tell(f"{away.problems[0].what}; asking again in {pause_s:.0f} s")
        end = time.monotonic() + pause_s
        while time.monotonic() < end:
            if talk.is_interrupted():
                raise away
            time.sleep(0.1)
        try:
            found = {base_id(job_id) for job_id in find_by_comment(comment).records}
        except Unreachable as still:
            away, answers = still, 0
            continue
        answers += 1
        if found or answers == 2:
            return found
    raise away


def _alone(job_id: str, comment: str) -> str:
    """The id of a job that was sent twice, after what came of the first sending, should it have arrived yet, is ended.

    Should it arrive later still, it finds the job's folder claimed, and does not start (templates/job.sh.j2).
    """
    try:
        return keep_first_cancel_rest({job_id, *(base_id(one) for one in find_by_comment(comment).records)})
    except Unreachable:
        return job_id


def keep_first_cancel_rest(ids: set[str]) -> str:
    """Of submissions under one token the first; the others, which a scheduler took late, are cancelled."""
    first, *late = sorted(ids, key=int)
    if late:
        cancel_jobs(late)
    return first


def mark_cancelled(folder: str) -> None:
    """Keep what is in this folder from starting."""
    with contextlib.suppress(OSError):  # the run's folder is gone, and with it the script
        Path(folder).mkdir(FOLDER_MODE, exist_ok=True)  # of a repeat there is none yet
        os.close(os.open(Path(folder) / "cancelled", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o640))


def _write_sent(ledger: Ledger, turns: Sequence[PendingAttempt], script: OwnScript, token: str) -> None:
    """Write the submission down beside its scripts; without that nothing is submitted."""
    try:
        write_sent(script.file.parent.parent, turns, token)
    except ReproError as error:
        record_back_in_turn(ledger, token, str(error.problems[0]))
        raise


def _send_queue(ledger: Ledger, turns: Sequence[PendingAttempt], script: OwnScript, sent: Sent) -> None:
    token = secrets.token_hex(8)
    if not claim(ledger, [turn.attempt_id for turn in turns], token, sender(), file=turns[0].file):
        return
    _write_sent(ledger, turns, script, token)
    scheduler_id = LocalScriptExecutor(script.file.parent).submit_queue(script.file)
    record_submission(ledger, token, scheduler_id)
    sent.ids.append(scheduler_id)
    sent.jobs += len(turns)


def _array(turns: Sequence[PendingAttempt], run_plan: RunPlan) -> Iterator[str]:
    """Which elements of the array are meant, on the command line: the file has them all."""
    indexes = [turn.array_index for turn in turns if turn.array_index is not None]
    if not indexes:
        return
    spans: list[list[int]] = []
    for index in sorted(indexes):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    yield f"--array={text}%{run_plan.at_once}"


def _kept_back(ledger: Ledger, run_id: str, turns: Sequence[PendingAttempt], run_plan: RunPlan) -> str | None:
    """Why these jobs cannot be given to the scheduler yet: it must know what they are to wait for."""
    if run_plan.canary is None or run_plan.canary in {turn.job_id for turn in turns}:
        return None
    canary = _canary(ledger, run_id, run_plan)
    return "its canary is not in the queue yet" if canary.phase in OPEN and canary.scheduler_id is None else None


def _canary(ledger: Ledger, run_id: str, run_plan: RunPlan) -> JobRow:
    return next(row for row in job_rows(ledger, run_id=run_id) if row.job_id == run_plan.canary)


def _dependencies(ledger: Ledger, run_id: str, turns: Sequence[PendingAttempt], run_plan: RunPlan) -> list[str] | None:
    """What these jobs have to wait for; None where it has failed already."""
    jobs = {turn.job_id for turn in turns}
    wanted = [f"afterany:{job_id}" for job_id in run_plan.after]
    wanted += [f"afterok:{warm_up}" for warm_up, needy in run_plan.warm_ups.items() if jobs & set(needy)]
    if run_plan.canary is not None and run_plan.canary not in jobs:
        canary = _canary(ledger, run_id, run_plan)
        if canary.phase in OPEN:
            wanted.append(f"afterok:{canary.scheduler_id}")
        elif canary.verdict is not None and not has_passed(
            CanaryJob(canary.label, Path(canary.folder), canary.iterations)
        ):
            return None  # before the verdict its log may not be visible here, and the jobs make this check themselves
    # An array keeps its own limit; what was cut off it for want of room, or must keep a limit with others, goes behind.
    before = under_way_of(ledger, run_id, None if run_plan.max_parallel is not None else turns[0].file)
    wanted += [f"afterany:{max(before, key=int)}"] if before else []
    if not wanted:
        return []
    # What waits for a job that failed would wait for ever.
    kill = ["--kill-on-invalid-dep=yes"] if any(one.startswith("afterok") for one in wanted) else []
    return [f"--dependency={','.join(dict.fromkeys(wanted))}", *kill]
