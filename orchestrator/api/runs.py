"""Runs of experiments: submission, waiting, retry and cancellation of jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, CaseOptions, JobFilter, Session, require_text, with_keywords
from orchestrator.api.jobs import POLL_EVERY_S, select_jobs, update, updated_ledger
from orchestrator.api.plans import PlannedRun, plan_run, require_positive, require_submittable
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.launch.cancel import Cancelled, may_have_jobs
from orchestrator.launch.cancel import cancel as cancel_attempts
from orchestrator.launch.preflight import gpu_warnings, image_warnings, require_ready
from orchestrator.launch.refresh import refresh
from orchestrator.launch.retry import changed_limit, failure_classes, plan_again, recorded_settings
from orchestrator.launch.run_options import FollowedJob, RunOptions
from orchestrator.launch.submit import submit as submit_plans
from orchestrator.launch.supervise import Backlog, FollowedJobs, RunSupervisor, wait_for
from orchestrator.ledger.attempts import job_rows, job_summaries
from orchestrator.ledger.database import DiskFull, Ledger, now
from orchestrator.ledger.experiment_files import record_experiment_file
from orchestrator.ledger.result_attempts import measured_for, result_rows
from orchestrator.ledger.rows import JobRow, JobSummary
from orchestrator.ledger.tables import ENDED, FAILED, OPEN, RUNNING, VERIFIED
from orchestrator.paths import Folders
from orchestrator.planning.run_settings import over
from orchestrator.reading.failure import POLICIES, Failure, fails_as_published, failure_named, ran_out_of_memory
from orchestrator.reading.job_status import JobStatus, Tally, counted_jobs, job_statuses, reuse_text, tallies
from orchestrator.results.outcome import FigureOutcome, read_outcome

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class Submission:
    """Jobs of a submission: how many were done, open or failed before, and what was submitted now.

    `left` are failed jobs that are not run again. `reused` has the origin and the age of measurements that another
    experiment made, by job id. `queued` jobs wait in the ledger for the reason `queued_because`.
    """

    planned: PlannedRun
    run_id: str
    jobs: tuple[JobRow, ...]
    done: int
    running: int
    waiting: int
    submitted: int
    queued: int
    queued_because: str | None
    left: Mapping[Failure, int]
    warm_ups: tuple[str, ...]
    canary: str | None
    options: RunOptions = field(repr=False)
    command: tuple[str, ...] = field(repr=False)
    ledger: Ledger = field(repr=False)
    reused: Mapping[str, str] = field(default_factory=dict)


@with_keywords(CaseOptions)
def submit(
    experiment: str,
    cluster: str,
    *,
    rerun: bool = False,
    repeat: int = 1,
    canary: bool = False,
    max_parallel: int | None = None,
    stop_after: int | None = None,
    after: Sequence[str] | str = (),
    warm_up: bool = False,
    session: Session = DEFAULT,
    **options: Unpack[CaseOptions],
) -> Submission:
    """Submit every case of an experiment that is neither verified nor open.

    `rerun` measures verified cases again, `repeat` each case several times in separate jobs. `canary` runs the smallest
    case first, and `warm_up` a job that compiles kernels. At most `max_parallel` jobs run at once, after the jobs
    `after`; none is started after `stop_after` failures of one kind.
    """
    require_positive(repeat=repeat, max_parallel=max_parallel, stop_after=stop_after)
    after = _names(after)
    run_options = {"repeat": repeat if repeat != 1 else None, "rerun": rerun, "canary": canary, "after": after}
    run_options |= {"max_parallel": max_parallel, "stop_after": stop_after, "depends_on": warm_up and "warm-up"}
    command = _command(session, "submit", [experiment], {"cluster": cluster, **options, **run_options})
    planned = plan_run(experiment, cluster, repeat=repeat, max_parallel=max_parallel, **options)
    require_submittable(planned, warm_up=warm_up)
    session.note(planned.notes)
    profile, plans, folders = planned.cluster, list(planned.plans), session.folders
    warnings = sorted({warning for plan in plans for warning in plan.warnings})
    for warning in [*warnings, *image_warnings(plans, profile), *gpu_warnings(plans, profile)]:
        session.reporter.message(f"warning: {warning}")
    require_ready(plans, profile, folders)
    ledger = session.existing_ledger(create=True)
    assert ledger is not None
    if planned.entry.path is not None:
        record_experiment_file(ledger, planned.entry.name, planned.entry.file)
    awaited = _awaited(ledger, folders, profile, after)
    chosen = RunOptions(
        rerun_verified=rerun,
        max_parallel=max_parallel,
        after=tuple(str(row.scheduler_id) for row in awaited) if profile.is_slurm else (),
        follows=() if profile.is_slurm else tuple(FollowedJob(row.folder, _queue_pid(row)) for row in awaited),
        canary=canary,
        stop_after=stop_after,
        warm_up=warm_up,
        settings=planned.settings,
    )
    session.note(update(ledger).complaints)
    before = {row.job_id: row for row in job_rows(ledger, experiment=planned.entry.name)}
    submitted = submit_plans(plans, profile, ledger, folders, command, chosen, session.reporter.message)
    recorded, sent = submitted.recorded, submitted.sent
    running = sum(job in before and before[job].phase == RUNNING for job in recorded.under_way)
    jobs = tuple(job_rows(ledger, run_id=submitted.run_id))
    return Submission(
        planned=planned,
        run_id=submitted.run_id,
        jobs=jobs,
        done=len(recorded.done),
        running=running,
        waiting=len(recorded.under_way) - running,
        submitted=sent.jobs,
        queued=sent.queued,
        queued_because=sent.why,
        left=Counter(failure_named(failure) for failure in recorded.left.values()),
        warm_ups=submitted.warm_ups,
        canary=next((plan.label for plan in plans if plan.identity == submitted.canary), None),
        options=chosen,
        command=command,
        ledger=ledger,
        reused=_reused(ledger, jobs),
    )


def _reused(ledger: Ledger, jobs: Sequence[JobRow]) -> dict[str, str]:
    """Return the origin and the age of each attempt that another experiment made, by job id."""
    rows, at = result_rows(ledger, jobs).rows, now()
    made_for = measured_for(ledger, rows)
    texts = {row.job_id: reuse_text(row, made_for, at) for row in rows}
    return {job_id: text for job_id, text in texts.items() if text is not None}


def _command(session: Session, name: str, targets: Sequence[str], options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the command to record: that of the session, else the command of `repro` that does the same."""
    words = ["repro", name, *targets]
    for option, value in {**options, "database": session.database}.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        for each in (each for each in values if each not in (None, False)):
            name = "set" if option == "settings" else option.replace("_", "-")
            words += [f"--{name}"] if each is True else [f"--{name}", str(each)]
    require_text([*words, *session.command])
    return session.command or tuple(words)


def _awaited(ledger: Ledger, folders: Folders, cluster: Cluster, after: Sequence[str]) -> list[JobRow]:
    """Return the open jobs of `--after`. The scheduler of the new jobs must know each of them."""
    if not after:
        return []
    scheduler = "slurm" if cluster.is_slurm else "local"
    rows = [row for row in select_jobs(ledger, folders, after) if row.phase in OPEN]
    for row in rows:
        if row.scheduler != scheduler or row.scheduler_id is None:
            why = "is not submitted yet" if row.scheduler == scheduler else "is a job of another scheduler"
            raise ReproError(Problem(f"--after {row.job_id}: {row.label} {why}", hint="wait for it: repro wait"))
    return rows


def _queue_pid(row: JobRow) -> int:
    """Return the process id of the local queue that runs the job."""
    return int(str(row.scheduler_id).partition("_")[0])


def supervise(submission: Submission, *, session: Session = DEFAULT) -> FigureOutcome:
    """Wait until the jobs of a submission have ended; return the outcome.

    Jobs that failed for an external reason are submitted again, and queued jobs are submitted when there is room.
    """
    planned, ledger, folders = submission.planned, submission.ledger, session.folders
    notify = session.reporter.message
    supervisor = RunSupervisor(
        planned.plans,
        planned.cluster,
        ledger,
        folders,
        submission.run_id,
        submission.options,
        submission.command,
        notify,
    )
    wait_for(
        lambda: update(ledger, POLL_EVERY_S), supervisor.rows, supervisor.supervise, notify, session.reporter.progress
    )
    case = planned.plans[0].case
    return read_outcome(ledger, folders, planned.entry.name, case.scale, planned.cluster.name, case.workload)


@dataclass(frozen=True, slots=True)
class Waited:
    """Jobs after waiting. `failed` have ended with an unexpected failure, or can never start."""

    jobs: tuple[JobStatus, ...]
    tallies: tuple[Tally, ...]
    failed: tuple[JobRow, ...]


def wait(targets: Sequence[str] | str = (), *, session: Session = DEFAULT) -> Waited:
    """Wait until these jobs, or all open jobs, have ended. Jobs that nobody can start are not waited for."""
    folders, targets = session.folders, _names(targets)
    ledger = session.ledger()
    # With the last recorded states: a job that failed since then counts, so `submit` and then `wait` reports it.
    chosen = select_jobs(ledger, folders, targets) if targets else _open_or_unjudged(ledger)
    if not chosen:
        return Waited((), (), ())
    notify = session.reporter.message
    followed, backlog = FollowedJobs(ledger, chosen), Backlog(ledger, notify)
    wait_for(
        lambda: update(ledger, POLL_EVERY_S),
        followed.rows,
        lambda: backlog.submit_what_fits(followed.rows()),
        notify,
        session.reporter.progress,
    )
    rows = followed.rows()
    results = result_rows(ledger, rows)
    verified = _verified_cases(ledger, [row for row in rows if row.failure == str(Failure.CANCELLED)])
    failed = tuple(
        row
        for row in rows
        if not _ended_well(folders, row) and not (row.failure == str(Failure.CANCELLED) and _case_of(row) in verified)
    )
    return Waited(tuple(job_statuses(ledger, results)), tuple(tallies(counted_jobs(results))), failed)


def _verified_cases(ledger: Ledger, cancelled: Sequence[JobRow]) -> set[tuple[str, ...]]:
    """Return the cases that have a verified result, of those that a user cancelled."""
    cases = {_case_of(row) for row in cancelled}
    latest = [row for name in {row.experiment for row in cancelled} for row in job_summaries(ledger, experiment=name)]
    same = [row for row in latest if _case_of(row) in cases]
    return {_case_of(row) for row in result_rows(ledger, same).rows if row.verdict == VERIFIED}


def _case_of(row: JobSummary) -> tuple[str, ...]:
    return row.experiment, row.scale, row.cluster, row.case_name, row.workload


def _open_or_unjudged(ledger: Ledger) -> list[JobRow]:
    return [*job_rows(ledger, only_open=True), *(row for row in job_rows(ledger, unjudged=True) if row.phase == ENDED)]


def _ended_well(folders: Folders, row: JobRow) -> bool:
    """Return whether a job is verified, or failed as published."""
    if row.verdict != FAILED or not ran_out_of_memory(row.failure):
        return row.verdict == VERIFIED
    try:
        cases = expand(find_experiment(folders, row.experiment), row.scale)
    except ReproError:  # the experiment's file has changed or is gone
        return False
    return any(fails_as_published(case, row.failure) for case in cases if case.name == row.case_name)


@dataclass(frozen=True, slots=True)
class RetriedJob:
    """A job that was submitted again."""

    job_id: str
    label: str
    attempt: int


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
    failures: tuple[Failure, ...]


@with_keywords(JobFilter)
def retry(
    targets: Sequence[str] | str,
    *,
    classes: str | None = None,
    time_limit: str | None = None,
    settings: Sequence[str] = (),
    on_group: Callable[[RetriedGroup], None] = lambda _group: None,
    session: Session = DEFAULT,
    **selection: Unpack[JobFilter],
) -> Retried:
    """Submit failed jobs again, planned from the current files, on `cluster` if it is given.

    `classes` are failure classes, else those that may succeed without a change. `settings` are fields of the profile
    over those of the first submission, for example `slurm.qos=high`. ReproError if a job would become another job.
    `on_group` gets each group when it is submitted; a later group may fail.
    """
    targets = _names(targets)
    command = _command(
        session, "retry", targets, {**selection, "class": classes, "time": time_limit, "settings": settings}
    )
    cluster = selection.get("cluster")
    wanted, new_limit = failure_classes(classes), changed_limit(time_limit)
    folders, ledger = session.folders, updated_ledger(session)
    where, scale, workload = selection.get("where"), selection.get("scale"), selection.get("workload")
    rows = select_jobs(ledger, folders, targets, where=where, scale=scale, workload=workload)
    rows = [row for row in rows if row.verdict == FAILED]
    groups: dict[tuple[str, ...], list[JobRow]] = {}
    settings_of = {run_id: recorded_settings(ledger, run_id) for run_id in {row.run_id for row in rows}}
    for row in rows:
        failure = failure_named(row.failure)
        if failure in wanted if wanted else POLICIES[failure].retry:
            profile = row.profile_file or row.cluster
            key = (row.experiment, row.scale, profile, row.workload, str(row.iterations), *row.spec.argument_changes)
            key = (*key, *settings_of[row.run_id])
            groups.setdefault(key, []).append(row)
    retries = [
        plan_again(folders, group, cluster, new_limit, over(settings_of[group[0].run_id], settings))
        for group in groups.values()
    ]
    for group in retries:
        require_ready(group.plans, group.cluster, folders)
    done: list[RetriedGroup] = []
    notify = session.reporter.message
    for group in retries:
        run_options = RunOptions(rerun_classes=wanted, only_failed=True, settings=group.settings)
        submitted = submit_plans(group.plans, group.cluster, ledger, folders, command, run_options, notify)
        labels = {plan.identity: plan.label for plan in group.plans}
        jobs = [RetriedJob(job, labels[job], number) for job, number in submitted.recorded.to_submit.items()]
        experiment = group.plans[0].case.experiment
        done.append(RetriedGroup(experiment, tuple(jobs), submitted.sent.jobs, len(submitted.recorded.left)))
        on_group(done[-1])
    return Retried(tuple(done), tuple(sorted({failure_named(row.failure) for row in rows})))


def _names(targets: Sequence[str] | str) -> Sequence[str]:
    return [targets] if isinstance(targets, str) else targets


@with_keywords(JobFilter)
def cancellable_jobs(
    targets: Sequence[str] | str, *, session: Session = DEFAULT, **selection: Unpack[JobFilter]
) -> list[JobRow]:
    """Return the attempts of these jobs that a scheduler may still have."""
    folders, ledger, targets = session.folders, session.ledger(), _names(targets)
    select_jobs(ledger, folders, targets, **selection)  # an unknown name is an error without a query
    try:
        session.note(refresh(ledger).complaints)
    except DiskFull as full:  # the jobs can be cancelled all the same
        session.note([f"states are as last recorded: {full}"])
    return may_have_jobs(ledger, select_jobs(ledger, folders, targets, **selection))


def cancel_jobs(jobs: Sequence[JobRow], *, session: Session = DEFAULT) -> Cancelled:
    """Ask the schedulers to end these jobs, in one call each."""
    return cancel_attempts(session.ledger(), jobs)


@with_keywords(JobFilter)
def cancel(targets: Sequence[str] | str, *, session: Session = DEFAULT, **selection: Unpack[JobFilter]) -> Cancelled:
    """Cancel the open jobs of these targets."""
    return cancel_jobs(cancellable_jobs(targets, session=session, **selection), session=session)
