"""Refresh of the ledger from the scheduler: interrupted submissions first, then each job that is under way.

An attempt belongs to one Slurm cluster and one user. Only that cluster is asked. Only that user, or root, can conclude
that a job is lost: Slurm may hide the jobs of other users.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path, PurePath

from orchestrator.errors import ReproError, Unreachable
from orchestrator.files import read_record
from orchestrator.identity import ProcessLocation, place_of, seconds_since_boot, this_machine_identity, user_name
from orchestrator.launch.executors import local_state
from orchestrator.launch.refresh import is_here, settle
from orchestrator.launch.run_options import RunPlan
from orchestrator.launch.run_record import COMMENT, SUBMISSIONS
from orchestrator.launch.sbatch import canary_row
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
from orchestrator.ledger.runs import run_record
from orchestrator.ledger.submissions import first_folder, may_start_again, next_folder, record_restart, record_unseen
from orchestrator.ledger.tables import ENDED, LOST, WAITING
from orchestrator.reading.failure import PREEMPTED_IN_GRACE
from orchestrator.slurm.command import at, cluster_identity, query_jobs
from orchestrator.slurm.notation import JobRecord, Phase, base_id, may_run_again

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
    cluster, may_poll, asked_at, slurm_complaints = None, False, None, list[str]()
    if any(row.scheduler == "slurm" for row in rows):
        try:
            cluster = cluster_identity()
            may_poll, asked_at, slurm_complaints = may_ask(ledger, f"slurm {cluster}", at_most_every_s)
        except Unreachable as error:
            slurm_complaints = [str(error)]
    settled = settle(ledger, {"local", "slurm"} if may_poll else {"local"})
    if settled.has_news:
        rows = refreshable_jobs(ledger)
    sent = [row for row in rows if row.scheduler_id is not None]
    complaints += _refresh_here(ledger, [row for row in sent if row.scheduler == "local"])
    if cluster is not None and may_poll:
        slurm_complaints = _refresh_slurm(ledger, [row for row in sent if row.scheduler == "slurm"], cluster)
        record_complaints(ledger, f"slurm {cluster}", slurm_complaints)
    return RefreshResult((*settled.complaints, *complaints, *slurm_complaints), asked_at)


def _record_restarts(ledger: Ledger) -> list[str]:
    """Record the jobs that Slurm has started again after their end. The earlier run ends by its own record."""
    complaints: dict[str, None] = {}
    for row in may_start_again(ledger):
        try:
            start = read_record(Path(next_folder(row.folder)) / "start")
            ended = _from_end_record(row)
        except ReproError as error:
            complaints[str(error)] = None
            continue
        if start is None or ended is None or start.scheduler_id != row.scheduler_id:
            continue
        record_observations(ledger, {row.attempt_id: ended}, [])
        record_restart(ledger, row, start.at)
    return list(complaints)


def _refresh_here(ledger: Ledger, rows: Sequence[JobSummary]) -> list[str]:
    here = [row for row in rows if is_here(row.machine, row.host)]
    seen, complaints = _each(here, _observe_local)
    record_observations(ledger, seen, [row.attempt_id for row in here])
    for host in sorted({row.host for row in rows if not is_here(row.machine, row.host)}):
        other = ", in another container or on another machine of that name" if host == socket.gethostname() else ""
        complaints.append(f"jobs run on {host}{other}, which alone can see them; states are as last seen")
    return complaints


def _each(
    rows: Sequence[JobSummary], observe: Callable[[JobSummary], Observation | None]
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


def _observe_local(row: JobSummary) -> Observation:
    assert row.scheduler_id is not None
    rebooted = place_of(row.machine, row.host) is ProcessLocation.REBOOTED
    queue = row.scheduler_id.partition("_")[0]
    return local_state(Path(row.folder), int(queue) if queue.isdecimal() else None, has_rebooted=rebooted)


def _refresh_slurm(ledger: Ledger, rows: Sequence[JobSummary], cluster: str) -> list[str]:
    by_cluster: dict[str | None, list[JobSummary]] = {}
    for row in rows:
        by_cluster.setdefault(None if row.slurm_cluster == cluster else row.slurm_cluster, []).append(row)
    complaints: list[str] = []
    for other, group in sorted(by_cluster.items(), key=lambda item: item[0] or ""):
        with at(other, cluster) as is_reached:
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
    try:
        for group in _with_different_ids(rows):
            observed, complaints = _observe_slurm(ledger, group)
            seen |= observed
            slurm_complaints += complaints
    except Unreachable as error:
        slurm_complaints.append(str(error))
    record_observations(ledger, seen, [row.attempt_id for row in rows])
    return slurm_complaints


def _with_different_ids(rows: Sequence[JobSummary]) -> list[list[JobSummary]]:
    """Divide the rows so that no group has a job id twice: Slurm gives ids out again after it lost its state."""
    groups: list[dict[str, JobSummary]] = []
    for row in rows:
        job_id = str(row.scheduler_id)
        group = next((group for group in groups if job_id not in group), None)
        if group is None:
            groups.append(group := {})
        group[job_id] = row
    return [list(group.values()) for group in groups]


def _observe_slurm(ledger: Ledger, rows: Sequence[JobSummary]) -> tuple[dict[int, Observation], list[str]]:
    """Ask once about these jobs. If no source lists a job, its own end record decides.

    A job without an end record is lost if no source has listed it for `LOST_AFTER`.
    """
    by_id = {str(row.scheduler_id): row for row in rows}
    answer = query_jobs(list(by_id), owner_check(by_id))
    asked = asked_to_end(ledger, [row.attempt_id for row in rows])
    failed_first: dict[str, str] = {}
    unseen: dict[int, int | None] = {}
    foreign: set[str] = set()

    def observe(row: JobSummary) -> Observation | None:
        record = answer.records.get(str(row.scheduler_id))
        if record is not None:
            observation = _from_record(record, row, row.attempt_id in asked)
            return _with_failed_dependency(ledger, row, observation, failed_first)
        ended = _from_end_record(row)
        if ended is not None or row.phase == ENDED or row.scheduler_id not in answer.unknown:
            return ended
        if not _may_conclude(row):
            foreign.add(str(row.user))
            return None
        # Elements of an array that are cancelled before they start leave no trace anywhere, at once.
        if row.attempt_id in asked and row.phase == WAITING:
            return Observation(state="CANCELLED", phase=str(Phase.ENDED), reason="by repro cancel", seen_via="nobody")
        unseen[row.attempt_id] = _log_bytes(row)
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
            seen[row.attempt_id] = _lost(row)
    return seen, [*answer.complaints, *complaints]


def _may_conclude(row: JobSummary) -> bool:
    """Return whether this process sees every job of the attempt's user, and asks the cluster of the attempt."""
    if row.slurm_cluster is None and row.host != socket.gethostname():  # recorded before attempts were bound
        return False
    return sees_jobs_of(row.user)


def sees_jobs_of(user: str | None) -> bool:
    """Return whether Slurm shows all jobs of this user to this process. On any site the user and root see them."""
    return user in (None, user_name()) or os.geteuid() == 0


def _log_bytes(row: JobSummary) -> int | None:
    """Return the size of a job's log; None if there is no log."""
    try:
        return (Path(row.folder) / "log.txt").lstat().st_size
    except OSError:
        return None


def _from_record(record: JobRecord, row: JobSummary, is_asked_to_end: bool) -> Observation:
    # An unknown state of a newer Slurm is not an end.
    phase = record.phase if record.phase is not Phase.UNKNOWN else Phase.RUNNING
    if phase is Phase.ENDED and row.is_requeued and may_run_again(record.state):
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
        is_of_canary = plan.canary is not None and not plan.warm_ups
        canary = canary_row(ledger, row.run_id, plan.canary) if is_of_canary and plan.canary is not None else None
        failed_first[row.run_id] = f"the canary ({canary.label})" if canary else "a job that it waits for"
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
        phase=str(Phase.ENDED),
        reason="from the job's own end record",
        nodes=end.host,
        exit_code=end.exit_code,
        started_at=start.at if start else None,
        ended_at=end.at,
        seen_via="its own record",
    )


def _lost(row: JobSummary) -> Observation:
    since = f"{row.unseen_since or now():%Y-%m-%d %H:%M} UTC"
    return Observation(
        state=LOST,
        phase=str(Phase.ENDED),
        reason=f"since {since} the scheduler does not list it, its log has not grown, and it left no end record",
        seen_via="nobody",
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
    return record.comment == comment or has_lost_comment or writes_into(record, folder)


def writes_into(record: JobRecord, folder: PurePath) -> bool:
    """Return whether the output of the job is a file in this folder of a run, whose name no other run has."""
    return PurePath(record.output).parts[-3:-1] == folder.parts[-2:]


def _has_started(record: JobRecord, row: JobSummary) -> bool:
    """Return whether the job with this id started in the row's folder when Slurm started this job."""
    try:
        start = read_record(Path(row.folder) / "start")
    except ReproError:
        return False
    started = utc(record.started_at)
    is_of_row = start is not None and started is not None and start.scheduler_id == row.scheduler_id == record.job_id
    return is_of_row and start is not None and started is not None and abs(start.at - started) <= _AFTER


def owner_check(rows: Mapping[str, JobSummary]) -> Callable[[JobRecord], bool | None]:
    """Return the check whether a record is the job of the row with its id. `rows` are by job id."""
    by_base = {base_id(job_id): row for job_id, row in rows.items()}

    def check(record: JobRecord) -> bool | None:
        row = rows.get(record.job_id) or by_base.get(base_id(record.job_id))
        return row is not None and is_job_of(record, row)

    return check
