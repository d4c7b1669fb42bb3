"""Runs of experiments: waiting, retry and cancellation of jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, JobFilter, Session, StateFilter
from orchestrator.api.jobs import POLL_EVERY_S, job_filter, name_list, one_job, select_jobs, update, updated_ledger
from orchestrator.api.submissions import recorded_command
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import find_cluster
from orchestrator.errors import ReproError
from orchestrator.launch.cancel import Cancelled, may_have_jobs
from orchestrator.launch.cancel import cancel as cancel_attempts
from orchestrator.launch.preflight import require_ready
from orchestrator.launch.refresh import refresh
from orchestrator.launch.run_options import RunOptions, RunPlan
from orchestrator.launch.sbatch import canary_row
from orchestrator.launch.submit import dispositions_of
from orchestrator.launch.submit import submit as submit_plans
from orchestrator.launch.supervise import (
    Backlog,
    FollowedJobs,
    Retry,
    changed_limit,
    failure_classes,
    plan_again,
    recorded_settings,
    wait_for,
)
from orchestrator.ledger.attempts import attempts_of_jobs, job_rows, job_summaries, result_rows
from orchestrator.ledger.database import DiskFull, Ledger
from orchestrator.ledger.rows import JobRow, JobSummary
from orchestrator.ledger.runs import Disposition, run_record
from orchestrator.ledger.tables import ENDED, FAILED, MEASURED, OPEN
from orchestrator.paths import Folders
from orchestrator.planning.batch_plan import read_budget
from orchestrator.planning.run_settings import over
from orchestrator.reading.failure import (
    Failure,
    class_named,
    fails_as_published,
    is_of_classes,
    policy_of,
    ran_out_of_memory,
)
from orchestrator.reading.job_status import ExperimentStatus, JobStatus, counted_jobs, job_statuses

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class Waited:
    """Jobs after waiting. `failed` have ended with an unexpected failure, or can never start.

    After a timeout, open jobs are not among the failed ones.
    """

    jobs: tuple[JobStatus, ...]
    tallies: tuple[ExperimentStatus, ...]
    failed: tuple[JobRow, ...]
    open_jobs: int = 0
    timed_out: bool = False


def wait(
    targets: Sequence[str] | str = (),
    *,
    timeout: str | None = None,
    session: Session = DEFAULT,
    **selection: Unpack[JobFilter],
) -> Waited:
    """Wait until these jobs, or all open jobs, have ended. Jobs that nobody can start are not waited for.

    The wait ends after the time `timeout`, `2h` or `0:30:00`. The jobs that are still open continue.
    """
    timeout_s = math.inf if timeout is None else read_budget(timeout, "--timeout")
    folders, targets = session.folders, name_list(targets)
    ledger = session.ledger()
    matches = job_filter(ledger, **selection)
    # With the last recorded states: a job that failed since then counts, so `submit` and then `wait` reports it.
    chosen = select_jobs(ledger, folders, targets) if targets else _open_or_unjudged(ledger)
    chosen = [row for row in chosen if matches(row)]
    if not chosen:
        return Waited((), (), ())
    report = session.reporter.message
    followed, backlog = FollowedJobs(ledger, chosen), Backlog(ledger, report)

    in_time = wait_for(
        lambda: update(ledger, POLL_EVERY_S),
        followed.rows,
        lambda: backlog.submit_what_fits(followed.rows()),
        report,
        session.reporter.progress,
        timeout_s,
    )
    rows = followed.rows()
    results = result_rows(ledger, rows)
    verified = _verified_cases(ledger, [row for row in rows if row.failure == str(Failure.CANCELLED)])
    failed = tuple(
        row
        for row in rows
        if (in_time or row.phase not in OPEN)
        and not _ended_well(folders, row)
        and not (row.failure == str(Failure.CANCELLED) and _case_of(row) in verified)
    )
    return Waited(
        tuple(job_statuses(ledger, results)),
        tuple(counted_jobs(ledger, results)),
        failed,
        sum(row.phase in OPEN for row in rows),
        not in_time,
    )


def _verified_cases(ledger: Ledger, cancelled: Sequence[JobRow]) -> set[tuple[str, ...]]:
    """Return the cases that have a verified or partial result, of those that a user cancelled."""
    cases = {_case_of(row) for row in cancelled}
    latest = [row for name in {row.experiment for row in cancelled} for row in job_summaries(ledger, experiment=name)]
    same = [row for row in latest if _case_of(row) in cases]
    return {_case_of(row) for row in result_rows(ledger, same).rows if row.verdict in MEASURED}


def _case_of(row: JobSummary) -> tuple[str, ...]:
    return row.experiment, row.scale, row.cluster, row.case_name, row.program


def canary_of(job: str, *, session: Session = DEFAULT) -> JobRow | None:
    """Return the failed canary of the run of a job; None if there is none, or if it is this job."""
    ledger = session.ledger()
    run_id = one_job(ledger, session.folders, job).run_id
    canary_id = RunPlan.from_json(run_record(ledger, run_id).run_options).canary
    canary = canary_row(ledger, run_id, canary_id) if canary_id not in (None, job) else None
    return canary if canary is not None and canary.verdict == FAILED else None


def _open_or_unjudged(ledger: Ledger) -> list[JobRow]:
    return [*job_rows(ledger, only_open=True), *(row for row in job_rows(ledger, unjudged=True) if row.phase == ENDED)]


def _ended_well(folders: Folders, row: JobRow) -> bool:
    """Return whether a job is verified or partial, or failed as published."""
    if row.verdict != FAILED or not ran_out_of_memory(row.failure):
        return row.verdict in MEASURED
    try:
        cases = expand(find_experiment(folders, row.experiment), row.scale)
    except ReproError:  # the experiment's file has changed or is gone
        return False
    return any(fails_as_published(case, row.failure) for case in cases if case.name == row.case_name)


@dataclass(frozen=True, slots=True)
class RetriedJob:
    """A job that was submitted again, or would be."""

    job: str
    experiment: str
    case: str
    attempt: int
    failure: str
    time_limit: str


@dataclass(frozen=True, slots=True)
class RetriedGroup:
    """Jobs of one experiment, scale, profile and program that were submitted again in one run.

    `left` jobs were not: too many attempts, or left to Slurm.
    """

    experiment: str
    jobs: tuple[RetriedJob, ...]
    submitted: int
    left: int


@dataclass(frozen=True, slots=True)
class Retried:
    """Groups of jobs that were submitted again. `failures` are the classes of all failed jobs that were named."""

    groups: tuple[RetriedGroup, ...]
    failures: tuple[str, ...]


def retry(
    targets: Sequence[str] | str,
    *,
    classes: str | None = None,
    time_limit: str | None = None,
    settings: Sequence[str] = (),
    dry_run: bool = False,
    on_group: Callable[[RetriedGroup], None] = lambda _group: None,
    session: Session = DEFAULT,
    **selection: Unpack[StateFilter],
) -> Retried:
    """Submit failed jobs again, planned from the current files. `cluster` selects jobs, and may be a profile's path.

    `classes` are failure classes, also those of described programs, else those that may succeed without a change.
    `settings` are fields of the profile over those of the first submission, for example `slurm.qos=high`.
    ReproError if a job would become another job. `on_group` gets each group when it is submitted; a later group may
    fail. With `dry_run` nothing is submitted.
    """
    targets = name_list(targets)
    options = {**selection, "class": classes, "time": time_limit, "settings": settings}
    command = recorded_command(session, "retry", targets, options)
    cluster = selection.get("cluster")
    new_limit = changed_limit(time_limit)
    folders, ledger = session.folders, updated_ledger(session)
    if cluster is not None:
        selection["cluster"] = find_cluster(folders, cluster).name
    rows = [row for row in select_jobs(ledger, folders, targets, **selection) if row.verdict == FAILED]
    failures = {row.job_id: class_named(row.failure) for row in rows}
    wanted = failure_classes(classes, failures.values())
    retries = [
        plan_again(folders, group, cluster, new_limit, over(of_run, settings))
        for group, of_run in _groups(ledger, rows, wanted)
    ]
    for group in retries:
        require_ready(group.plans, group.cluster, folders)
    done: list[RetriedGroup] = []
    for group in retries:
        run_options = RunOptions(rerun_classes=wanted, only_failed=True, settings=group.settings)
        if dry_run:
            attempts, submitted, left = _would_retry(ledger, group, run_options)
        else:
            options_of_run = (command, run_options, session.reporter.message)
            sent = submit_plans(group.plans, group.cluster, ledger, folders, *options_of_run)
            attempts, submitted, left = sent.recorded.to_submit, sent.sent.jobs, len(sent.recorded.left)
        jobs = tuple(_retried_jobs(group, attempts, failures))
        done.append(RetriedGroup(group.plans[0].case.experiment, jobs, submitted, left))
        on_group(done[-1])
    return Retried(tuple(done), tuple(sorted(set(failures.values()))))


def _retried_jobs(group: Retry, attempts: Mapping[str, int], failures: Mapping[str, str]) -> Iterator[RetriedJob]:
    """Yield the jobs of a group that have a next attempt."""
    for plan in group.plans:
        job, case = plan.identity, plan.case
        if job in attempts:
            limit = plan.resources.time_limit
            yield RetriedJob(job, case.experiment, plan.label, attempts[job], failures[job], limit)


def _groups(
    ledger: Ledger, rows: Sequence[JobRow], wanted: Collection[str]
) -> Iterator[tuple[list[JobRow], tuple[str, ...]]]:
    """Yield the failed jobs to plan together, with the settings of their runs: those of `wanted`, if given."""
    groups: dict[tuple[object, ...], list[JobRow]] = {}
    settings_of = {run_id: recorded_settings(ledger, run_id) for run_id in {row.run_id for row in rows}}
    for row in rows:
        if is_of_classes(row.failure, wanted) if wanted else policy_of(row.failure).retry:
            profile = row.profile_file or row.cluster
            key = (row.experiment, row.scale, profile, row.program, row.iterations, tuple(row.spec.argument_changes))
            groups.setdefault((*key, settings_of[row.run_id]), []).append(row)
    for group in groups.values():
        yield group, settings_of[group[0].run_id]


def _would_retry(ledger: Ledger, group: Retry, options: RunOptions) -> tuple[dict[str, int], int, int]:
    """Return the next attempt of each job that would be submitted, their number, and that of the jobs left alone."""
    before = attempts_of_jobs(ledger, [plan.identity for plan in group.plans])
    dispositions = dispositions_of(group.plans, before, options, group.cluster)
    attempts = {job: before[job][-1].number + 1 for job, of in dispositions.items() if of is Disposition.MISSING}
    return attempts, 0, sum(of is Disposition.LEFT for of in dispositions.values())


def cancellable_jobs(
    targets: Sequence[str] | str, *, session: Session = DEFAULT, **selection: Unpack[StateFilter]
) -> list[JobRow]:
    """Return the attempts of these jobs that a scheduler may still have."""
    folders, ledger, targets = session.folders, session.ledger(), name_list(targets)
    select_jobs(ledger, folders, targets, **selection)  # an unknown name is an error without a query
    try:
        session.note(refresh(ledger).complaints)
    except DiskFull as full:  # the jobs can be cancelled all the same
        session.note([f"states are as last recorded: {full}"])
    return may_have_jobs(ledger, select_jobs(ledger, folders, targets, **selection))


def cancel_jobs(jobs: Sequence[JobRow], *, session: Session = DEFAULT) -> Cancelled:
    """Ask the schedulers to end these jobs, in one call each."""
    return cancel_attempts(session.ledger(), jobs)


def cancel(targets: Sequence[str] | str, *, session: Session = DEFAULT, **selection: Unpack[StateFilter]) -> Cancelled:
    """Cancel the open jobs of these targets."""
    return cancel_jobs(cancellable_jobs(targets, session=session, **selection), session=session)
