"""Refresh of the ledger from the scheduler: interrupted submissions first, then each job that is under way.

An attempt belongs to one Slurm cluster and one user. Only that cluster is asked. Only that user, or root, can conclude
that a job is lost: Slurm may hide the jobs of other users.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from typing import TypeVar

from orchestrator.errors import ReproError, Unreachable
from orchestrator.files import ScriptRecord, read_record, tail_bytes
from orchestrator.identity import (
    ProcessLocation,
    place_of,
    seconds_since_boot,
    start_ticks,
    this_machine_identity,
    user_name,
)
from orchestrator.launch.executors import find_process, is_alive, local_state
from orchestrator.launch.run_options import RunPlan
from orchestrator.launch.run_record import COMMENT, SUBMISSIONS, sent_of_run
from orchestrator.launch.sbatch import canary_row, comment_of, keep_first_cancel_rest
from orchestrator.ledger.attempts import (
    RefreshResult,
    asked_to_end,
    may_ask,
    record_complaints,
    record_observations,
    refreshable_jobs,
    rows_of_attempts,
)
from orchestrator.ledger.database import Ledger, now, utc
from orchestrator.ledger.rows import AttemptRow, JobSummary, Observation
from orchestrator.ledger.runs import (
    NewJob,
    first_folder,
    interrupted_submissions,
    may_start_again,
    next_folder,
    record_queued_again,
    record_restart,
    record_submission,
    record_unseen,
    run_ids,
    run_record,
    time_unsettled_s,
)
from orchestrator.ledger.tables import ENDED, LOST, VERIFIED, WAITING
from orchestrator.reading.collect import is_verified
from orchestrator.reading.failure import PREEMPTED_IN_GRACE
from orchestrator.slurm.command import at, cluster_identity, find_by_comments, query_jobs
from orchestrator.slurm.notation import JobRecord, Phase, base_id, comment_pattern, may_run_again

Row = TypeVar("Row", bound=AttemptRow)

LOST_AFTER = timedelta(minutes=5)
"""Time without a listing and without growth of its log after which a job is lost: accounting lags, and a
controller that has just started may not have read all of its state."""
REQUEUED_WITHIN = timedelta(minutes=5)
"""Time that Slurm may take to requeue a job that lost a node, if the profile has `requeue: true`."""


def refresh(ledger: Ledger, at_most_every_s: float = 0.0) -> RefreshResult:
    """Bring the ledger up to date. A scheduler that does not answer is a complaint, and no state changes.

    With `at_most_every_s` the scheduler is not asked if a process with this ledger has asked it within that time.
    """
    complaints = _record_restarts(ledger)
    # Lost jobs are among the rows, as the scheduler may list them again.
    rows = refreshable_jobs(ledger)
    cluster, may_poll, asked_at, slurm_complaints = "", False, None, list[str]()
    if any(row.scheduler == "slurm" for row in rows):
        try:
            cluster = cluster_identity()
            may_poll, asked_at, slurm_complaints = may_ask(ledger, f"slurm {cluster}", at_most_every_s)
        except Unreachable as error:
            slurm_complaints = [str(error)]
    has_news, unsettled = settle(ledger, {"local", "slurm"} if may_poll else {"local"})
    if has_news:
        rows = refreshable_jobs(ledger)
    sent = [row for row in rows if row.scheduler_id is not None]
    complaints += _refresh_here(ledger, [row for row in sent if row.scheduler == "local"])
    if may_poll:
        slurm_complaints = _refresh_slurm(ledger, [row for row in sent if row.scheduler == "slurm"], cluster)
        record_complaints(ledger, f"slurm {cluster}", slurm_complaints)
    return RefreshResult((*unsettled, *complaints, *slurm_complaints), asked_at)


def _record_restarts(ledger: Ledger) -> list[str]:
    """Record the jobs that Slurm has started again after their end. The earlier run ends by its own record."""

    def observe(row: AttemptRow) -> None:
        start, ended = read_record(Path(next_folder(row.folder)) / "start"), _from_end_record(row)
        if start is not None and ended is not None and start.scheduler_id == row.scheduler_id:
            record_observations(ledger, {row.attempt_id: ended}, [])
            record_restart(ledger, row, start.at)

    return _each(may_start_again(ledger), observe)[1]


def _refresh_here(ledger: Ledger, rows: Sequence[JobSummary]) -> list[str]:
    def observe(row: JobSummary) -> Observation:
        queue = str(row.scheduler_id).partition("_")[0]
        rebooted = place_of(row.machine, row.host) is ProcessLocation.REBOOTED
        return local_state(Path(row.folder), int(queue) if queue.isdecimal() else None, has_rebooted=rebooted)

    here = [row for row in rows if is_here(row.machine, row.host)]
    seen, complaints = _each(here, observe)
    record_observations(ledger, seen, [row.attempt_id for row in here])
    for host in sorted({row.host for row in rows if not is_here(row.machine, row.host)}):
        other = ", in another container or on another machine of that name" if host == socket.gethostname() else ""
        complaints.append(f"jobs run on {host}{other}, which alone can see them; states are as last seen")
    return complaints


def _each(
    rows: Sequence[Row], observe: Callable[[Row], Observation | None]
) -> tuple[dict[int, Observation], list[str]]:
    """Return the observation of each row. A file that cannot be read is a complaint."""
    seen: dict[int, Observation] = {}
    complaints: dict[str, None] = {}
    for row in rows:
        try:
            observation = observe(row)
        except ReproError as error:
            complaints[str(error)] = None
            continue
        if observation is not None:
            seen[row.attempt_id] = _since_submission(observation, row.submitted_at)
    return seen, list(complaints)


def _since_submission(observation: Observation, submitted_at: datetime | None) -> Observation:
    """Return the observation without times before the submission: those of Slurm and of records are whole seconds."""

    def later(at: datetime | None) -> datetime | None:
        if at is None or submitted_at is None or not timedelta(0) < submitted_at - at < timedelta(seconds=1):
            return at
        return submitted_at

    return replace(observation, started_at=later(observation.started_at), ended_at=later(observation.ended_at))


def _refresh_slurm(ledger: Ledger, rows: Sequence[JobSummary], cluster: str) -> list[str]:
    complaints: list[str] = []
    for name in sorted({row.slurm_cluster or cluster for row in rows}):
        group = [row for row in rows if (row.slurm_cluster or cluster) == name]
        with at(name, cluster) as is_reached:
            complaints += _refresh_cluster(ledger, group) if is_reached else _refresh_unreached(ledger, group, cluster)
    return list(dict.fromkeys(complaints))


def _refresh_unreached(ledger: Ledger, rows: Sequence[JobSummary], here: str) -> list[str]:
    """Read the end records of jobs of a cluster that cannot be asked from `here`."""
    seen, complaints = _each(rows, _from_end_record)
    record_observations(ledger, seen, [])
    if any(row.attempt_id not in seen and row.state != LOST for row in rows):
        other = rows[0].slurm_cluster
        hint = f"set SLURM_CONF to ask it, not {here}"
        complaints.append(f"jobs of Slurm cluster {other}: states are as last seen. Hint: {hint}")
    return complaints


def _refresh_cluster(ledger: Ledger, rows: Sequence[JobSummary]) -> list[str]:
    """Ask the cluster of these jobs."""
    seen: dict[int, Observation] = {}
    slurm_complaints: list[str] = []
    left = list(rows)
    try:
        while left:  # no group has a job id twice: Slurm gives ids out again after it lost its state
            group = {str(row.scheduler_id): row for row in reversed(left)}
            left = [row for row in left if group[str(row.scheduler_id)] is not row]
            observed, complaints = _observe_slurm(ledger, group)
            seen |= observed
            slurm_complaints += complaints
    except Unreachable as error:
        slurm_complaints.append(str(error))
    record_observations(ledger, seen, [row.attempt_id for row in rows])
    return slurm_complaints


def _observe_slurm(ledger: Ledger, by_id: Mapping[str, JobSummary]) -> tuple[dict[int, Observation], list[str]]:
    """Ask once about these jobs, by their ids. If no source lists a job, its own end record decides.

    A job without an end record is lost if no source has listed it for `LOST_AFTER`.
    """
    rows = list(by_id.values())
    answer = query_jobs(list(by_id), owner_check(by_id))
    asked = asked_to_end(ledger, [row.attempt_id for row in rows])
    failed_first: dict[str, str] = {}
    unseen: dict[int, int | None] = {}
    foreign: set[str] = set()
    living = {base_id(id_) for id_, record in answer.records.items() if record.phase in _LIVING}

    def observe(row: JobSummary) -> Observation | None:
        record = answer.records.get(str(row.scheduler_id))
        if record is not None:
            observation = _from_record(record, row, row.attempt_id in asked)
            return _with_failed_dependency(ledger, row, observation, failed_first)
        ended = _from_end_record(row)
        if ended is not None or row.phase == ENDED or row.scheduler_id not in answer.unknown:
            return ended
        is_unbound = row.slurm_cluster is None and row.host != socket.gethostname()  # of a script that a user submitted
        if is_unbound or not sees_jobs_of(row.user):
            foreign.add(str(row.user))
            return None
        # Elements of an array that are cancelled before they start leave no trace anywhere, at once.
        if row.phase == WAITING and (row.attempt_id in asked or _is_gone_from(living, row)):
            why = "by repro cancel" if row.attempt_id in asked else _GONE_FROM_ARRAY
            return Observation(state="CANCELLED", phase=ENDED, reason=why, seen_via="nobody")
        unseen[row.attempt_id] = None
        with contextlib.suppress(OSError):
            unseen[row.attempt_id] = (Path(row.folder) / "log.txt").lstat().st_size
        return None

    seen, complaints = _each(rows, observe)
    complaints += [f"Slurm does not list a job of {user}; only {user} can find out more" for user in sorted(foreign)]
    complaints += [
        f"job {job_id}: Slurm lists this id with another comment and another output file, so its state is as last seen"
        for job_id in answer.unclear
        if by_id[job_id].phase != ENDED and by_id[job_id].attempt_id not in seen
    ]
    waited_s = record_unseen(ledger, unseen, this_machine_identity().boot_id, seconds_since_boot())
    for row in rows:
        if waited_s.get(row.attempt_id, -1.0) >= LOST_AFTER.total_seconds():
            since = f"{row.unseen_since or now():%Y-%m-%d %H:%M} UTC"
            why = f"since {since} the scheduler does not list it, its log has not grown, and it left no end record"
            seen[row.attempt_id] = Observation(state=LOST, phase=ENDED, reason=why, seen_via="nobody")
    return seen, [*answer.complaints, *complaints]


_LIVING = (Phase.WAITING, Phase.RUNNING)
_GONE_FROM_ARRAY = "not by repro: Slurm lists other elements of its array, and not this one, which has not started"


def _is_gone_from(living: Collection[str], row: JobSummary) -> bool:
    """Return whether the row is an element of one of these arrays that has not started: scancel removed it."""
    if row.array_index is None or base_id(str(row.scheduler_id)) not in living:
        return False
    folder = Path(row.folder)
    return not any(os.path.lexists(folder / name) for name in ("claimed", "start", "log.txt"))


def sees_jobs_of(user: str | None) -> bool:
    """Return whether Slurm shows all jobs of this user to this process. On any site the user and root see them."""
    return user in (None, user_name()) or os.geteuid() == 0


def _from_record(record: JobRecord, row: JobSummary, is_asked_to_end: bool) -> Observation:
    # An unknown state of a newer Slurm is not an end.
    phase = record.phase if record.phase is not Phase.UNKNOWN else Phase.RUNNING
    if row.is_requeued and may_run_again(record.state):
        ended = utc(record.ended_at)
        if ended is None or now() - ended < REQUEUED_WITHIN:
            phase = Phase.WAITING
    return Observation(
        state=record.state,
        phase=str(phase),
        reason=_reason(record, is_asked_to_end),
        nodes=record.nodes or None,
        exit_code=record.exit_code,
        signal=record.signal,
        started_at=utc(record.started_at),
        ended_at=utc(record.ended_at) if phase is Phase.ENDED else None,
        starts_at=utc(record.starts_at),
        ends_at=utc(record.ends_at),
        seen_via=record.source,
    )


def _with_failed_dependency(
    ledger: Ledger, row: JobSummary, observation: Observation, failed_first: dict[str, str]
) -> Observation:
    """Return the observation with the job that failed in its reason, if Slurm cancelled the job because of that.

    `failed_first` is a cache by run.
    """
    if observation.state != "CANCELLED" or "dependency" not in (observation.reason or "").lower():
        return observation
    if row.run_id not in failed_first:
        plan = RunPlan.from_json(run_record(ledger, row.run_id).run_options)
        name = "a job that it waits for"
        if plan.canary is not None and not plan.warm_ups:
            name = f"the canary ({canary_row(ledger, row.run_id, plan.canary).label})"
        failed_first[row.run_id] = name
    return replace(observation, reason=f"{failed_first[row.run_id]} failed ({observation.reason})")


def _reason(record: JobRecord, is_asked_to_end: bool) -> str | None:
    """Return the scheduler's reason; for a cancelled job, who cancelled it."""
    reason = record.reason if record.reason not in ("", "None") else None
    if record.preempted_at is not None and record.state == "FAILED":
        return PREEMPTED_IN_GRACE
    if record.state != "CANCELLED" or "dependency" in (reason or "").lower():
        return reason
    if is_asked_to_end:
        return "by repro cancel"
    by = record.cancelled_by
    return f"by {by}, not by repro" if by and by != user_name() else "not by repro"


def observe_end_records(ledger: Ledger, attempt_ids: Sequence[int]) -> bool:
    """Record the end of each attempt that left an end record, also if no scheduler answers. Return whether any did."""
    rows = [row for row in rows_of_attempts(ledger, attempt_ids) if row.phase != ENDED]
    seen = {row.attempt_id: observation for row in rows if (observation := _from_end_record(row)) is not None}
    record_observations(ledger, seen, [])
    return bool(seen)


def _from_end_record(row: AttemptRow) -> Observation | None:
    folder = Path(row.folder)
    end, start = read_record(folder / "end"), read_record(folder / "start")
    if end is None or end.scheduler_id != row.scheduler_id:
        return None
    return Observation(
        state="COMPLETED" if end.exit_code == 0 else "FAILED",
        phase=ENDED,
        reason="from the job's own end record",
        nodes=end.host,
        exit_code=end.exit_code,
        started_at=start.at if start else None,
        ended_at=end.at,
        seen_via="its own record",
    )


# ---- identity of a Slurm job ----------------------------------------------------------------------------------
#
# The job id selects the record, and Slurm may give an id out again. Users, plug-ins of a site and reapers of idle GPUs
# change comments, so a comment without a token proves nothing. User, submission time, name and output file decide then,
# and the job's own `start` record. The token of another attempt is a proof against the job.

_TOKEN = re.compile(rf"(?<![\w-]){COMMENT}([\w-]+)")
_BEFORE, _AFTER = timedelta(minutes=5), timedelta(minutes=10)
"""Difference of the clocks of a login node and the controller, and time that the answer of sbatch may take."""


def is_job_of(record: JobRecord, row: JobSummary) -> bool | None:
    """Return whether a record with the id of the row is the row's job; None if that cannot be known."""
    if is_proven(record, row):
        return True
    if _is_of_another_user(record, row) or _TOKEN.search(record.comment):
        return False
    submitted = utc(record.submitted_at)
    began, ended = row.created_at - _BEFORE, (row.submitted_at or now()) + _AFTER
    is_in_time = submitted is not None and began <= submitted <= ended
    if record.source == "sacct":  # which has no output file here
        return is_in_time or submitted is None
    if not (is_in_time and record.name.endswith((f"-{PurePath(row.folder).name}", f"-{row.scale}"))):
        return False
    return None if record.output else True


def is_proven(record: JobRecord, row: JobSummary) -> bool:
    """Return whether the comment, the output file or the `start` record proves that this is the row's job."""
    tokens = _TOKEN.findall(record.comment)
    if tokens:
        return row.token in tokens
    if _is_of_another_user(record, row):
        return False
    folder = PurePath(first_folder(row.folder))
    is_in_array = row.array_index is not None and writes_into(record, folder.parent / SUBMISSIONS)
    return is_in_array or writes_into(record, folder) or _has_started(record, row)


def _is_of_another_user(record: JobRecord, row: JobSummary) -> bool:
    """Return whether the users differ. A number is that of a user for whom this machine has no name."""
    return bool(record.user and row.user) and not record.user.isdecimal() and record.user != row.user


def is_side_job(record: JobRecord, comment: str, folder: PurePath) -> bool:
    """Return whether a record is the job with this comment and folder, which the ledger does not contain.

    Accounting may not store comments.
    """
    has_lost_comment = record.source == "sacct" and not record.comment
    is_named = comment_pattern([comment]).search(record.comment) is not None
    return is_named or has_lost_comment or writes_into(record, folder)


def writes_into(record: JobRecord, folder: PurePath) -> bool:
    """Return whether the output of the job is a file in this folder of a run, whose name no other run has."""
    return PurePath(record.output).parts[-3:-1] == folder.parts[-2:]


def _has_started(record: JobRecord, row: JobSummary) -> bool:
    """Return whether the job with this id started in the row's folder when Slurm started this job."""
    start, started = _read(row, "start"), utc(record.started_at)
    if start is None or started is None or not start.scheduler_id == row.scheduler_id == record.job_id:
        return False
    return abs(start.at - started) <= _AFTER


def owner_check(rows: Mapping[str, JobSummary]) -> Callable[[JobRecord], bool | None]:
    """Return the check whether a record is the job of the row with its id. `rows` are by job id."""
    by_base = {base_id(job_id): row for job_id, row in rows.items()}

    def check(record: JobRecord) -> bool | None:
        row = rows.get(record.job_id) or by_base.get(base_id(record.job_id))
        return row is not None and is_job_of(record, row)

    return check


# ---- recovery of interrupted submissions -------------------------------------------------------------------------

GRACE = timedelta(minutes=5)
"""Time for a submission by a process that is not visible, and for a job's first record if only the queue answers."""
WHY_QUEUED = "interrupted before the scheduler had it; `repro submit` or `repro wait` submits it"


def settle(ledger: Ledger, schedulers: Collection[str]) -> tuple[bool, list[str]]:
    """Find the results of submissions that were interrupted. Return whether there were any, and complaints.

    Only the submitting user can ask reliably: a site may hide the jobs of one user from another.
    """
    interrupted = [
        attempts
        for attempts in interrupted_submissions(ledger)
        if attempts[0].scheduler in schedulers and not is_being_made(ledger, attempts)
    ]
    own = [attempts for attempts in interrupted if ledger.is_own(attempts[0].user)]
    complaints = [
        f"a submission of {user} was cut off; {user}'s next command finds out what became of it"
        for user in sorted({str(attempts[0].user) for attempts in interrupted if attempts not in own})
    ]
    for attempts in own:
        complaints += _settle_here(ledger, attempts) if attempts[0].scheduler == "local" else []
    complaints += _settle_slurm(ledger, [attempts for attempts in own if attempts[0].scheduler == "slurm"])
    return bool(own), complaints


def is_here(machine: str | None, host: str) -> bool:
    """Return whether the processes of local jobs of this machine are visible here; a reboot has ended them."""
    return place_of(machine, host) is not ProcessLocation.ELSEWHERE


def is_being_made(ledger: Ledger, attempts: Sequence[AttemptRow]) -> bool:
    """Return whether the process that submits these attempts, or its sbatch, runs or may run out of sight."""
    first, alive = attempts[0], sender_is_alive(attempts[0])
    if alive is not None:
        return alive or (first.scheduler == "slurm" and find_process(comment_of(first.token)) is not None)
    return first.scheduler == "slurm" and _waited_s(ledger, attempts) < GRACE.total_seconds()


def _waited_s(ledger: Ledger, attempts: Sequence[AttemptRow]) -> float:
    """Return for how many seconds this machine has waited for an answer about a submission."""
    ids = [attempt.attempt_id for attempt in attempts]
    waited = time_unsettled_s(ledger, ids, this_machine_identity().boot_id, seconds_since_boot())
    return min(waited.values(), default=0.0)


def _settle_here(ledger: Ledger, attempts: Sequence[AttemptRow]) -> list[str]:
    first = attempts[0]
    if not is_here(first.machine, first.host):
        return [f"jobs were being started on {first.host}, which alone can see them"]
    try:
        starts = [read_record(Path(attempt.folder) / "start") for attempt in attempts]
    except ReproError as error:
        return [str(error)]
    started = (start.scheduler_id.partition("_")[0] for start in starts if start is not None)
    queue = next(started, None) or find_process(Path(first.file).name)
    if queue is None:
        record_queued_again(ledger, first.token, WHY_QUEUED)
    else:
        record_submission(ledger, first.token, queue)
    return []


def _settle_slurm(ledger: Ledger, submissions: Sequence[Sequence[AttemptRow]]) -> list[str]:
    complaints: list[str] = []
    try:
        here = cluster_identity() if submissions else ""
        for cluster in dict.fromkeys(attempts[0].slurm_cluster for attempts in submissions):
            same = [attempts for attempts in submissions if attempts[0].slurm_cluster == cluster]
            cut_off = f"a submission to Slurm cluster {cluster} was cut off; SLURM_CONF here means {here}"
            with at(cluster, here) as is_reached:
                complaints += _settle_on_cluster(ledger, same) if is_reached else [cut_off]
    except Unreachable as error:
        complaints.append(str(error))
    return complaints


def _settle_on_cluster(ledger: Ledger, submissions: Sequence[Sequence[AttemptRow]]) -> list[str]:
    complaints: list[str] = []
    answer = find_by_comments([comment_of(attempts[0].token) for attempts in submissions])
    for attempts in submissions:
        token, comment = attempts[0].token, comment_of(attempts[0].token)
        ids = {base_id(job_id) for job_id, record in answer.records.items() if record.comment == comment}
        try:
            recorded = recorded_ids([attempt.folder for attempt in attempts])
        except ReproError as error:
            complaints.append(str(error))
            continue
        if ids:
            record_submission(ledger, token, keep_first_cancel_rest(ids))
        elif recorded:  # no further id is cancelled: what a folder contains is no proof for that
            record_submission(ledger, token, min(recorded, key=int))
        elif not answer.complaints or (answer.lists_queue and _waited_s(ledger, attempts) >= GRACE.total_seconds()):
            # A job that left the queue would have left a record. If it is late all the same, its claim keeps a second
            # copy in the same folder from starting.
            record_queued_again(ledger, token, WHY_QUEUED)
        else:
            complaints.append(f"whether submission {token} reached the scheduler is not known yet")
    return [*answer.complaints, *complaints]


def recorded_ids(folders: Sequence[str]) -> set[str]:
    """Return the scheduler's ids, without array indexes, that jobs wrote into their own folders when they started."""
    ids: set[str] = set()
    for folder in folders:
        claimed = tail_bytes(Path(folder), "claimed", 100).decode(errors="replace").strip()
        if re.fullmatch(r"[0-9]+(_[0-9]+)?", claimed):
            ids.add(base_id(claimed))
    return ids


def unrecorded_attempts(ledger: Ledger, jobs: Sequence[NewJob]) -> list[AttemptRow]:
    """Return the attempts of these jobs that wait, run or are verified in runs that the ledger does not contain.

    A verified one has its verdict, and the others are not ended. Unreachable where Slurm has to be asked and does not
    answer.
    """
    by_id = {job.id: job for job in jobs}
    recorded_runs = run_ids(ledger)
    folders: list[Path] = []
    for runs in ledger.runs:
        with contextlib.suppress(OSError):  # no run yet, or none that this user may see
            folders += sorted(path for path in runs.iterdir() if path.is_dir() and path.name not in recorded_runs)
    sent = [attempt for run in folders for attempt in sent_of_run(run) if attempt.job_id in by_id]
    ended = {attempt.folder: end for attempt in sent if (end := _read(attempt, "end")) is not None}
    in_slurm = jobs_by_token({row.token for row in sent if row.folder not in ended and row.scheduler == "slurm"})
    found: dict[Path, AttemptRow] = {}  # once, where a folder of runs is reached by two names
    for attempt in sent:
        end = ended.get(attempt.folder)
        seen = None
        if end is None:
            seen = _under_way(attempt, in_slurm.get((attempt.token, attempt.array_index)))
        else:
            with contextlib.suppress(ReproError):  # judged as for the ledger
                if is_verified(by_id[attempt.job_id], Path(attempt.folder), end):
                    seen = replace(attempt, scheduler_id=end.scheduler_id, phase=ENDED, verdict=VERIFIED)
        if seen is not None:
            found[Path(seen.folder).resolve()] = seen
    return list(found.values())


def _under_way(attempt: AttemptRow, job: JobRecord | None) -> AttemptRow | None:
    """Return the attempt with the scheduler's id, if it may wait or run. `job` is what Slurm has of it.

    A local job of another machine is under way, once it has started.
    """
    start = _read(attempt, "start")
    if job is not None:
        return replace(attempt, scheduler_id=job.job_id) if job.phase is not Phase.ENDED else None
    if attempt.scheduler == "slurm" or attempt.host != socket.gethostname():
        is_under_way = start is not None
    elif start is not None:
        is_under_way = is_alive(start.pid, attempt.folder)
    else:
        is_under_way = not (Path(attempt.folder) / "cancelled").exists() and find_process(attempt.file) is not None
    return replace(attempt, scheduler_id=start.scheduler_id if start else None) if is_under_way else None


def _read(attempt: AttemptRow, name: str) -> ScriptRecord | None:
    try:
        return read_record(Path(attempt.folder) / name)
    except ReproError:
        return None


def jobs_by_token(tokens: Collection[str]) -> Mapping[tuple[str, int | None], JobRecord]:
    """Return what Slurm has of the submissions with these tokens, by token and element."""
    records = find_by_comments([comment_of(token) for token in tokens]).records if tokens else {}
    elements = ((job_id.partition("_")[2], record) for job_id, record in records.items())
    return {
        (record.comment.removeprefix(COMMENT), int(element) if element.isdecimal() else None): record
        for element, record in elements
    }


def sender_is_alive(sent: AttemptRow) -> bool | None:
    """Return whether the process that recorded this still runs; None if its processes cannot be seen from here.

    A process with the same number and another start time is another process.
    """
    if sent.pid is None:
        return False
    location = place_of(sent.machine, sent.host)
    if location is not ProcessLocation.HERE:
        return None if location is ProcessLocation.ELSEWHERE else False
    return sent.pid_start_ticks is not None and start_ticks(sent.pid) == sent.pid_start_ticks
