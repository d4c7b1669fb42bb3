"""Supervision of jobs while `repro wait` or `submit --wait` runs. There is no daemon.

Both commands submit queued attempts when the scheduler has room, and cancel the jobs that wait for a failed canary.
`submit --wait` also submits jobs again that failed for an external reason, and applies `--stop-after`. `repro retry`
plans failed jobs again.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from orchestrator.catalog.case import with_changes
from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters import cluster_names
from orchestrator.clusters.resolve import Cluster, find_cluster, recorded_cluster
from orchestrator.errors import Problem, ReproError, did_you_mean, require_none
from orchestrator.launch.cancel import cancel
from orchestrator.launch.refresh import sender_is_alive
from orchestrator.launch.run_options import RunOptions, RunPlan, equal_failures
from orchestrator.launch.sbatch import Callbacks, canary_row, send
from orchestrator.launch.submit import submit
from orchestrator.ledger.attempts import RefreshResult, job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import queued_attempts, run_record
from orchestrator.ledger.tables import ENDED, FAILED, OPEN, QUEUED, WAITING
from orchestrator.paths import Folders, short_name
from orchestrator.planning.batch_plan import read_settings
from orchestrator.planning.plan import Plan, plan_cases, repeated
from orchestrator.planning.target import replace_program
from orchestrator.reading.failure import MOST_ATTEMPTS, Failure, failure_named
from orchestrator.reading.job_status import can_never_start, hint_for, wait_reason
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.text import counted

LOCAL_WAIT_S = 0.5
SLURM_WAIT_S = 3.0
"""Intervals between two reads of the ledger and the logs while a command waits."""
FULL_QUEUE_RETRY_S = 60.0
"""Interval between submissions to a full queue that none of these jobs has left."""


class Backlog:
    """Queued attempts of some jobs. They are submitted when a job has left the queue, or after a minute."""

    def __init__(self, ledger: Ledger, notify: Callable[[str], None]) -> None:
        self._ledger, self._notify = ledger, notify
        self._jobs_in_queue: int | None = None
        self._tried_at = 0.0
        self._has_named_others = False
        self._canaries: dict[str, str | None] = {}

    def submit_what_fits(self, rows: Sequence[JobRow]) -> None:
        """Submit queued attempts. Call this after each poll of the scheduler, with the current rows."""
        for message in self.cancel_dependents(rows):
            self._notify(message)
        queued = {row.attempt_id for row in rows if row.state == QUEUED}
        jobs_in_queue = sum(row.phase in OPEN and row.state != QUEUED for row in rows)
        has_room = self._jobs_in_queue is None or jobs_in_queue < self._jobs_in_queue
        self._jobs_in_queue = jobs_in_queue
        if not queued or not (has_room or time.monotonic() - self._tried_at > FULL_QUEUE_RETRY_S):
            return
        self._tried_at = time.monotonic()
        for run_id in self._own_runs(queued):
            try:
                sent = send(self._ledger, run_id, Callbacks(self._notify))
            except ReproError as error:
                self._notify(f"note: {error}")
                return
            self._jobs_in_queue += sent.jobs

    def _own_runs(self, queued: set[int]) -> list[str]:
        """Return the runs of these attempts that no other process submits."""
        attempts = [attempt for attempt in queued_attempts(self._ledger) if attempt.attempt_id in queued]
        own = [attempt for attempt in attempts if self._ledger.is_own(attempt.user)]
        if len(own) < len(attempts) and not self._has_named_others:
            self._has_named_others = True
            count = len(attempts) - len(own)
            self._notify(f"note: {count} of these jobs belong to another user, whose `repro wait` submits them")
        free = (attempt for attempt in own if attempt.pid == os.getpid() or not sender_is_alive(attempt))
        return list(dict.fromkeys(attempt.run_id for attempt in free))

    def cancel_dependents(self, rows: Sequence[JobRow]) -> list[str]:
        """Cancel submitted jobs whose canary failed; return the messages.

        Without this they keep themselves from starting, when they have their nodes. A job checks only a part of the
        configuration.
        """
        submitted = [row for row in rows if row.phase == WAITING and row.state != QUEUED]
        waiting = [row for row in submitted if self._ledger.is_own(row.user)]
        messages = []
        for run_id in dict.fromkeys(row.run_id for row in waiting):
            if run_id not in self._canaries:
                self._canaries[run_id] = RunPlan.from_json(run_record(self._ledger, run_id).run_options).canary
            canary_id = self._canaries[run_id]
            canary = canary_row(self._ledger, run_id, canary_id) if canary_id is not None else None
            if canary is None or canary.verdict != FAILED:
                continue
            # A local job checks all else at once, without cost.
            is_hidden = canary.failure == str(Failure.CONFIGURATION)
            of_run = [row for row in waiting if row.run_id == run_id]
            dependents = [row for row in of_run if is_hidden or row.scheduler == "slurm"]
            if dependents:
                failed = f"the canary, {canary.label}, failed ({canary.failure})"
                cancel(self._ledger, dependents, failed)
                self._canaries[run_id] = None  # asked once
                messages.append(f"{failed}: {len(dependents)} that had not started are cancelled")
        return messages


@dataclass(slots=True)
class RunSupervisor:
    """Supervises one run. `command` is the command line that is recorded with further runs."""

    plans: Sequence[Plan]
    cluster: Cluster
    ledger: Ledger
    folders: Folders
    run_id: str
    options: RunOptions
    command: Sequence[str]
    notify: Callable[[str], None]
    backlog: Backlog = field(init=False)

    def __post_init__(self) -> None:
        self.options = dataclasses.replace(
            self.options, rerun_verified=False, rerun_classes=frozenset(), only_failed=True, canary=False
        )
        self.backlog = Backlog(self.ledger, self.notify)

    def rows(self) -> list[JobRow]:
        """Return the current rows of the run's jobs."""
        return job_rows(self.ledger, run_id=self.run_id)

    def supervise(self) -> None:
        """Stop the run if `--stop-after` requires it; else submit failed jobs again, and queued attempts that fit."""
        rows, stop_after = self.rows(), self.options.stop_after
        message = None if stop_after is None else stop_if_due(self.ledger, rows, stop_after)
        if message is not None:
            self.notify(message)
            return
        repeated = [row for row in rows if may_be_resubmitted(row)]
        if repeated:
            ids = {row.job_id for row in repeated}
            plans = [plan for plan in self.plans if plan.identity in ids]
            try:
                again = self.command, self.options, self.notify
                result = submit(plans, self.cluster, self.ledger, self.folders, *again)
            except ReproError as error:
                self.notify(f"note: {error}")
                return
            for row in repeated:
                if row.job_id in result.recorded.to_submit:
                    self.notify(f"{row.label} failed ({row.failure}) and is submitted again")
        self.backlog.submit_what_fits(rows)


def may_be_resubmitted(row: JobRow) -> bool:
    """Return whether `--wait` submits a failed job again: it ran, and the cause was external.

    A job that was never submitted, was stopped, or found its GPU in use would fail again at once.
    """
    if row.verdict != FAILED or row.number >= MOST_ATTEMPTS:
        return False
    failure = failure_named(row.failure)
    if failure in (Failure.NODE_FAIL, Failure.PREEMPTED):
        return not row.is_requeued
    return failure in (Failure.LOST, Failure.IMAGE, Failure.GPU_FAULT)


def stop_if_due(ledger: Ledger, rows: Sequence[JobRow], stop_after: int) -> str | None:
    """Cancel the jobs of a run that have not started, once `stop_after` jobs have failed in the same way.

    Return a message; None if nothing is cancelled. The kinds of failures are those that a job counts before it starts.
    """
    waiting = [row for row in rows if row.phase == WAITING]
    # Only jobs that have ended in `rows`: a job that failed after the last poll is still WAITING there.
    ended = [row for row in rows if row.phase == ENDED]
    count, kind = equal_failures(ended) if waiting else (0, "")
    if count < stop_after:
        return None

    cancel(ledger, waiting, f"{counted(count, 'job')} failed ({kind})")
    are = "is" if len(waiting) == 1 else "are"
    return f"{counted(count, 'job')} failed ({kind}): {len(waiting)} that had not started {are} cancelled"


def wait_for(
    update: Callable[[], RefreshResult],
    rows: Callable[[], list[JobRow]],
    after_update: Callable[[], None],
    notify: Callable[[str], None],
    progress: Callable[[Sequence[JobRow]], None],
    timeout_s: float = math.inf,
) -> bool:
    """Return True when all these jobs have ended or the open ones can never start; report what stops them.

    `update` asks the scheduler and reads the logs. `progress` gets the rows before and after each update. Return
    False if jobs are still open after `timeout_s`; they are left alone.
    """
    reported: set[str] = set()
    end = time.monotonic() + timeout_s
    progress(rows())  # the first answer of a scheduler may take a minute
    while True:
        for complaint in update().complaints:
            if complaint not in reported:
                reported.add(complaint)
                notify(f"note: {complaint}")
        after_update()
        current = rows()
        progress(current)
        open_rows = [row for row in current if row.phase in OPEN]
        submitted = [row for row in open_rows if row.state != QUEUED]  # the others wait for room behind these
        if not open_rows or (submitted and all(map(can_never_start, submitted))):
            break
        left_s = end - time.monotonic()
        if left_s <= 0:
            return False
        interval_s = SLURM_WAIT_S if all(row.scheduler == "slurm" for row in open_rows) else LOCAL_WAIT_S
        time.sleep(min(interval_s, left_s))
    for line in obstacles(open_rows):
        notify(line)
    return True


class FollowedJobs:
    """Jobs and their current rows. The row of a job that has ended is read once, however long the others take."""

    def __init__(self, ledger: Ledger, rows: Sequence[JobRow]) -> None:
        self._ledger = ledger
        self._rows = {row.job_id: row for row in rows}

    def rows(self) -> list[JobRow]:
        """Return the current rows in the order of the first ones."""
        open_rows = {row.job_id: row for row in job_rows(self._ledger, only_open=True) if row.job_id in self._rows}
        for job_id, row in self._rows.items():
            if job_id in open_rows:
                self._rows[job_id] = open_rows[job_id]
            elif row.phase in OPEN or row.verdict is None:
                same = job_rows(self._ledger, job_prefix=job_id)
                self._rows[job_id] = next(other for other in same if other.job_id == job_id)
        return list(self._rows.values())


def obstacles(rows: Sequence[JobRow]) -> list[str]:
    """Return a line for each obstacle that keeps open jobs from starting, with the hint."""
    groups: dict[tuple[bool, str | None], list[JobRow]] = {}
    for row in rows:
        groups.setdefault((row.state == QUEUED, row.reason), []).append(row)
    problems = []
    for row, *others in groups.values():
        name = f"{len(others) + 1} jobs, first {row.job_id} ({row.label})" if others else f"{row.job_id} ({row.label})"
        what = f"queued, not submitted yet{f' ({row.reason})' if row.reason else ''}"
        hint: str | None = f"repro wait {row.job_id} submits it when there is room"
        if (reason := wait_reason(row)) is not None:
            what, hint = f"{row.reason}: {reason.meaning}", hint_for(reason, row, *others)
        problems.append(str(Problem(what, f"{name}:", hint)))
    return problems


# ---- failed jobs planned again --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed jobs of one experiment, planned again from the current profile."""

    cluster: Cluster
    plans: tuple[Plan, ...]
    settings: tuple[str, ...]
    max_parallel: int | None

    def options(self, classes: frozenset[str]) -> RunOptions:
        """Return the options of a run that submits failed jobs of these classes, with the limit of the earlier run."""
        limit = self.max_parallel
        return RunOptions(rerun_classes=classes, only_failed=True, max_parallel=limit, settings=self.settings)


def recorded_options(ledger: Ledger, run_id: str) -> tuple[tuple[str, ...], int | None]:
    """Return the settings and `--max-parallel` of the command line that a run was submitted with."""
    run_plan = RunPlan.from_json(run_record(ledger, run_id).run_options)
    return run_plan.settings, run_plan.max_parallel


def plan_again(
    folders: Folders,
    rows: Sequence[JobRow],
    cluster: str | None,
    new_limit: Callable[[str], str],
    settings: tuple[str, ...],
    max_parallel: int | None,
) -> Retry:
    """Return the same jobs, planned again with these settings; ReproError if one would become another job."""
    first, run_settings = rows[0], read_settings(settings)
    entry = find_experiment(folders, first.experiment)
    if cluster is None or (cluster == first.cluster and cluster not in cluster_names(folders)):
        profile = recorded_cluster(folders, first.cluster, first.profile_file, run_settings.of_profile)
    else:
        profile = find_cluster(folders, cluster, run_settings.of_profile)
    profile = dataclasses.replace(profile, settings=run_settings.all)
    names = {row.case_name for row in rows}
    cases = cases_to_run(entry, first.scale)
    if first.program not in {case.program for case in cases}:
        cases = replace_program(cases, first.program)
    # A time budget may have changed the number of iterations, and --arg the arguments.
    chosen = [case.with_iterations(first.iterations) for case in cases if case.name in names]
    chosen = run_settings.applied(with_changes(chosen, first.spec.argument_changes))
    plans = repeated(plan_cases(entry, chosen, profile, folders), max(row.repeat for row in rows)) if chosen else []
    by_id = {plan.identity: plan for plan in plans}
    for row in rows:
        if row.job_id not in by_id:
            why = "its experiment, profile, code or image has changed"
            hint = f"repro submit {short_name(first.experiment)} --cluster {first.cluster}"
            raise ReproError(Problem(f"{row.label} ({row.job_id}) would be another job now: {why}", hint=hint))
    again = []
    for plan in (by_id[row.job_id] for row in rows):
        resources = dataclasses.replace(plan.resources, time_limit=new_limit(plan.resources.time_limit))
        again.append(dataclasses.replace(plan, resources=resources))
    return Retry(profile, tuple(again), settings, max_parallel)


def failure_classes(text: str | None, of_programs: Iterable[str] = ()) -> frozenset[str]:
    """Return the failure classes of a list such as `node-fail,timeout`; ReproError if one is unknown.

    `of_programs` are those that described programs name.
    """
    classes: dict[str, str] = {str(name): name for name in (*Failure, *of_programs)}
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    require_none(
        Problem(f"--class {name}: no such class", hint=did_you_mean(name, classes) or f"classes: {', '.join(classes)}")
        for name in names
        if name not in classes
    )
    return frozenset(classes[name] for name in names)


def changed_limit(text: str | None) -> Callable[[str], str]:
    """Return the function from an old time limit to a new one; ReproError if the text is not a limit."""
    if text is None:
        return lambda old: old
    if share := re.fullmatch(r"\+([0-9]{1,4})%", text):
        return lambda old: format_time_limit(time_limit_s(old) * (100 + int(share[1])) // 100)
    if clock := re.fullmatch(r"(\+?)((?:[0-9]{1,3}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9])", text):
        return lambda old: format_time_limit(time_limit_s(clock[2]) + (time_limit_s(old) if clock[1] else 0))
    raise ReproError(Problem(f"--time {text}: not a time limit", hint="for example +50%, +0:30:00 or 2:00:00"))
