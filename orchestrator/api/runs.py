"""Runs of experiments: submission, waiting, retry and cancellation of jobs; scripts to submit by hand, and adoption."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from typing_extensions import Unpack

from orchestrator.api import DEFAULT, CaseOptions, JobFilter, Session, StateFilter, require_text
from orchestrator.api.catalog import require_experiment
from orchestrator.api.jobs import POLL_EVERY_S, job_filter, name_list, one_job, select_jobs, update, updated_ledger
from orchestrator.api.plans import PlannedRun, plan_run, plan_runs, require_positive, require_submittable
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.fields import Field, row_of
from orchestrator.files import private_folder
from orchestrator.launch.cancel import Cancelled, may_have_jobs
from orchestrator.launch.cancel import cancel as cancel_attempts
from orchestrator.launch.preflight import gpu_warnings, image_warnings, require_ready
from orchestrator.launch.refresh import observe_end_records, refresh
from orchestrator.launch.render import explain_job, render_job
from orchestrator.launch.run_options import FollowedJob, RunOptions, RunPlan
from orchestrator.launch.sbatch import canary_row, comment_of
from orchestrator.launch.submit import copy_programs, dispositions_of
from orchestrator.launch.submit import submit as submit_plans
from orchestrator.launch.supervise import (
    Backlog,
    FollowedJobs,
    Retry,
    RunSupervisor,
    changed_limit,
    failure_classes,
    plan_again,
    recorded_options,
    wait_for,
)
from orchestrator.launch.templates import Explained
from orchestrator.ledger.attempts import (
    attempts_of_jobs,
    job_rows,
    job_summaries,
    measured_for,
    result_rows,
    rows_of_attempts,
)
from orchestrator.ledger.database import DiskFull, Ledger, now
from orchestrator.ledger.rows import JobRow, JobSummary
from orchestrator.ledger.runs import Disposition, adopted_ids, record_adopted, record_experiment_file, run_record
from orchestrator.ledger.tables import ENDED, FAILED, MEASURED, OPEN, RUNNING
from orchestrator.paths import Folders
from orchestrator.planning.batch_plan import over, read_budget
from orchestrator.programs.command import changes_of
from orchestrator.reading.failure import (
    Failure,
    class_named,
    fails_as_published,
    is_of_classes,
    policy_of,
    ran_out_of_memory,
)
from orchestrator.reading.job_status import ExperimentStatus, JobStatus, counted_jobs, job_statuses, reuse_text
from orchestrator.results.outcome import FigureOutcome, judge_figure
from orchestrator.text import option_words


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
    left: Mapping[str, int]
    warm_ups: tuple[str, ...]
    canary: str | None
    options: RunOptions = field(repr=False)
    command: tuple[str, ...] = field(repr=False)
    ledger: Ledger = field(repr=False)
    reused: Mapping[str, str] = field(default_factory=dict)


class SubmitOptions(CaseOptions, total=False):
    """Keywords of `submit`: those of `submit_all` for one experiment."""

    rerun: bool
    repeat: int
    canary: bool
    max_parallel: int | None
    stop_after: int | None
    after: Sequence[str] | str
    warm_up: bool


def submit(
    experiment: str, cluster: str, *, session: Session = DEFAULT, **options: Unpack[SubmitOptions]
) -> Submission:
    """Submit every case of an experiment that is neither verified nor open, as `submit_all` does."""
    require_experiment(experiment)
    (submission,) = submit_all([experiment], cluster, session=session, **options)
    return submission


def submit_all(
    names: Sequence[str] | str,
    cluster: str,
    *,
    rerun: bool = False,
    repeat: int = 1,
    canary: bool = False,
    max_parallel: int | None = None,
    stop_after: int | None = None,
    after: Sequence[str] | str = (),
    warm_up: bool = False,
    on_submission: Callable[[Submission], None] = lambda _submission: None,
    session: Session = DEFAULT,
    **options: Unpack[CaseOptions],
) -> list[Submission]:
    """Submit every case of experiments or papers that is neither verified nor open.

    `rerun` measures verified cases again, `repeat` each case several times in separate jobs. `canary` runs the smallest
    case of each experiment first, and `warm_up` a job that compiles kernels. At most `max_parallel` jobs of an
    experiment run at once, after the jobs `after`; none is started after `stop_after` failures of one kind.

    All experiments are planned and checked before the first job is submitted. A job that two of them share is
    submitted once. `on_submission` gets each experiment when it is submitted; a later one may fail.
    """
    require_positive(repeat=repeat, max_parallel=max_parallel, stop_after=stop_after)
    if options.get("example"):
        what = "--example: example values cannot be submitted"
        raise ReproError(Problem(what, hint="add --dry-run, or fill in the values: repro clusters show NAME"))
    names, after = name_list(names), name_list(after)
    run_options = {"repeat": repeat if repeat != 1 else None, "rerun": rerun, "canary": canary, "after": after}
    run_options |= {"max_parallel": max_parallel, "stop_after": stop_after, "depends_on": warm_up and "warm-up"}
    command = recorded_command(session, "submit", names, {"cluster": cluster, **options, **run_options})
    planned = plan_runs(names, cluster, repeat=repeat, max_parallel=max_parallel, **options)
    _require_ready(planned, session, warm_up)
    ledger = session.ledger(create=True)
    chosen = _after(ledger, session.folders, planned[0].cluster, after)
    chosen = replace(chosen, rerun_verified=rerun, canary=canary, warm_up=warm_up, settings=planned[0].settings)
    chosen = replace(chosen, max_parallel=max_parallel, stop_after=stop_after)
    for run in planned:
        if run.entry.path is not None:
            record_experiment_file(ledger, run.entry.name, run.entry.file)
    session.note(update(ledger).complaints)
    submissions: list[Submission] = []
    for run in planned:
        submissions.append(_submit(run, ledger, command, chosen, session))
        own = {job.job_id for job in submissions[-1].jobs if job.run_id == submissions[-1].run_id}
        chosen = replace(chosen, own_jobs=chosen.own_jobs | own)
        on_submission(submissions[-1])
    return submissions


def _require_ready(planned: Sequence[PlannedRun], session: Session, warm_up: bool) -> None:
    """Report notes and warnings of the plans; ReproError if a job cannot run on this cluster now."""
    require_submittable(planned, warm_up=warm_up)
    for run in planned:
        session.note(run.notes)
    profile, plans = planned[0].cluster, [plan for run in planned for plan in run.plans]
    warnings = sorted({warning for plan in plans for warning in plan.warnings})
    for warning in [*warnings, *image_warnings(plans, profile), *gpu_warnings(plans, profile)]:
        session.reporter.message(f"warning: {warning}")
    require_ready(plans, profile, session.folders)


def _submit(
    planned: PlannedRun, ledger: Ledger, command: tuple[str, ...], chosen: RunOptions, session: Session
) -> Submission:
    """Submit the missing jobs of one experiment."""
    plans = list(planned.plans)
    chosen = replace(chosen, warm_up=chosen.warm_up and any(plan.program.warm_up for plan in plans))
    before = {row.job_id: row for row in job_rows(ledger, experiment=planned.entry.name)}
    submitted = submit_plans(plans, planned.cluster, ledger, session.folders, command, chosen, session.reporter.message)
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
        left=Counter(class_named(failure) for failure in recorded.left.values()),
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


def recorded_command(
    session: Session, name: str, targets: Sequence[str], options: Mapping[str, object]
) -> tuple[str, ...]:
    """Return the command to record: that of the session, else the command of `repro` that does the same."""
    words = ("repro", name, *targets, *option_words({**options, "database": session.database}))
    require_text([*words, *session.command])
    return session.command or words


def _after(ledger: Ledger, folders: Folders, cluster: Cluster, after: Sequence[str]) -> RunOptions:
    """Return the options for the open jobs of `--after`. The scheduler of the new jobs must know each of them."""
    if not after:
        return RunOptions()
    scheduler = "slurm" if cluster.is_slurm else "local"
    rows = [row for row in select_jobs(ledger, folders, after) if row.phase in OPEN]
    for row in rows:
        if row.scheduler != scheduler or row.scheduler_id is None:
            why = "is not submitted yet" if row.scheduler == scheduler else "is a job of another scheduler"
            raise ReproError(Problem(f"--after {row.job_id}: {row.label} {why}", hint="wait for it: repro wait"))
    if cluster.is_slurm:
        return RunOptions(after=tuple(str(row.scheduler_id) for row in rows))
    queues = [int(str(row.scheduler_id).partition("_")[0]) for row in rows]  # process ids
    return RunOptions(follows=tuple(FollowedJob(row.folder, pid) for row, pid in zip(rows, queues, strict=True)))


def supervise(submissions: Sequence[Submission] | Submission, *, session: Session = DEFAULT) -> list[FigureOutcome]:
    """Wait until the jobs of these submissions have ended; return the outcome of each.

    Jobs that failed for an external reason are submitted again, and queued jobs are submitted when there is room.
    """
    submissions = [submissions] if isinstance(submissions, Submission) else submissions
    ledger, folders, report = submissions[0].ledger, session.folders, session.reporter.message
    supervisors = [
        RunSupervisor(
            one.planned.plans, one.planned.cluster, ledger, folders, one.run_id, one.options, one.command, report
        )
        for one in submissions
    ]

    def rows() -> list[JobRow]:
        """Return the current rows, those of a job that experiments share once."""
        return list({row.job_id: row for supervisor in supervisors for row in supervisor.rows()}.values())

    def supervise_all() -> None:
        for supervisor in supervisors:
            supervisor.supervise()

    wait_for(lambda: update(ledger, POLL_EVERY_S), rows, supervise_all, report, session.reporter.progress)
    return [
        judge_figure(
            *(ledger, folders, planned.entry.name, planned.scale, planned.cluster.name, planned.plans[0].case.program),
            changes=changes_of(plan.case.argument_changes for plan in planned.plans),
        )
        for planned in (submission.planned for submission in submissions)
    ]


@dataclass(frozen=True, slots=True)
class CaseScript:
    """The batch script of a case. `file` is where it was written."""

    name: str
    text: str
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """Scripts of a planned run. `lines` are those of the first script with their origins, if asked for."""

    planned: PlannedRun
    scripts: tuple[CaseScript, ...]
    lines: tuple[Explained, ...] = ()


def render(
    experiment: str,
    cluster: str,
    output: Path | str | None = None,
    *,
    explain: bool = False,
    session: Session = DEFAULT,
    **options: Unpack[CaseOptions],
) -> Rendered:
    """Render the batch script of each case; with `output`, write them and what they import, ready to submit.

    Beside each script is a record without secrets, by which `adopt` reads the job into the ledger. With `explain`, only
    the first script is explained and nothing is written.
    """
    from orchestrator.launch.adopt import token_of, write_records
    from orchestrator.launch.denied_nodes import denied_note, with_denied_nodes

    planned = plan_run(experiment, cluster, **options)
    session.note(planned.notes)
    folders, base = session.folders, Path(output or "").resolve()
    profile = with_denied_nodes(planned.cluster)
    session.note(denied_note(profile))
    stem = "-".join(filter(None, [planned.entry.short_name, options.get("program")]))
    names = [f"{stem}-{plan.case.slug}" for plan in planned.plans]
    if explain:
        plan, name = planned.plans[0], names[0]
        log = base / f"{name}.batch.txt"
        return Rendered(planned, (), tuple(explain_job(plan, profile, base / name, folders.templates, output=log)))
    scripts = []
    for plan, name in zip(planned.plans, names, strict=True):
        folder, log = base / name, base / f"{name}.batch.txt"
        comment = None if output is None else comment_of(token_of(plan, folder))
        text = render_job(plan, profile, folder, folders.templates, comment=comment, output=None if comment else log)
        scripts.append(CaseScript(name, text, base / f"{name}.sh" if comment else None))
    if output is not None:
        if base.exists() and not base.is_dir():
            raise ReproError(Problem("not a folder", f"{output}:", "give a folder for the scripts"))
        copy_programs((plan.program for plan in planned.plans), folders)
        base.mkdir(parents=True, exist_ok=True)
    command = session.command or ("repro", "render", experiment, "--cluster", cluster)
    texts = {script.file: script.text for script in scripts if script.file is not None}
    for file, text in texts.items():
        private_folder(file.with_suffix(""))  # Slurm opens the output of the script before it runs
        file.write_text(text, encoding="utf-8")
        file.chmod(0o750)
    if texts:
        write_records(planned.plans, profile, folders, command, texts)
    return Rendered(planned, tuple(scripts))


@dataclass(frozen=True, slots=True)
class Adopted:
    """Jobs of rendered scripts, and the scripts that an earlier command adopted or that were never submitted."""

    jobs: tuple[JobRow, ...]
    known: tuple[Path, ...]
    not_submitted: tuple[Path, ...]


def adopt(folder: Path | str, *, session: Session = DEFAULT) -> Adopted:
    """Read the jobs of rendered scripts into the ledger: script, Slurm job id, records and log.

    `folder` is that of `render(output=folder)`. A job that still runs is adopted as running. A second call adds only
    jobs that were submitted since. The verdict comes from the log, as for every job. ReproError for a folder without
    records and for a record of another version; then nothing is adopted.
    """
    from orchestrator.launch.adopt import find_started, read_rendered

    rendered = read_rendered(Path(folder), session.folders)
    session.note(find_started(rendered))
    ledger = session.ledger(create=True)
    not_submitted = [Path(str(attempt.file)) for _, _, attempt in rendered if attempt.scheduler_id is None]
    submitted = [job for job in rendered if job[-1].scheduler_id is not None]
    recorded = adopted_ids(ledger, [job.id for _, job, _ in submitted])
    known = [attempt for *_, attempt in submitted if (attempt.folder, attempt.scheduler_id) in recorded]
    ids: list[int] = []
    for run in {run.id: run for run, _, _ in submitted}.values():
        ids += record_adopted(ledger, run, [(job, attempt) for of, job, attempt in submitted if of is run])
    session.note(update(ledger).complaints)
    if observe_end_records(ledger, ids):
        session.note(update(ledger).complaints)
    files = tuple(Path(str(attempt.file)) for attempt in known)
    return Adopted(tuple(rows_of_attempts(ledger, ids)), files, tuple(not_submitted))


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
    chosen = select_jobs(ledger, folders, targets) if targets else job_rows(ledger, only_open=True)
    if not targets:
        chosen += [row for row in job_rows(ledger, unjudged=True) if row.phase == ENDED]
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

    job: Annotated[str, Field(of="identity")]
    experiment: Annotated[str, Field(of="case.experiment")]
    case: Annotated[str, Field(of="label")]
    attempt: int
    failure: str
    time_limit: Annotated[str, Field(of="resources.time_limit")]


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
    cluster, new_limit = selection.get("cluster"), changed_limit(time_limit)
    folders, ledger = session.folders, updated_ledger(session)
    if cluster is not None and not any(row.cluster == cluster for row in job_rows(ledger)):
        selection["cluster"] = find_cluster(folders, cluster).name
    rows = [row for row in select_jobs(ledger, folders, targets, **selection) if row.verdict == FAILED]
    failures = {row.job_id: class_named(row.failure) for row in rows}
    wanted = failure_classes(classes, failures.values())
    retries = [
        plan_again(folders, group, cluster, new_limit, over(of_run, settings), max_parallel)
        for group, (of_run, max_parallel) in _groups(ledger, rows, wanted)
    ]
    for group in retries:
        require_ready(group.plans, group.cluster, folders)
    done: list[RetriedGroup] = []
    for group in retries:
        run_options = group.options(wanted)
        if dry_run:
            attempts, submitted, left = _would_retry(ledger, group, run_options)
        else:
            options_of_run = (command, run_options, session.reporter.message)
            sent = submit_plans(group.plans, group.cluster, ledger, folders, *options_of_run)
            attempts, submitted, left = sent.recorded.to_submit, sent.sent.jobs, len(sent.recorded.left)
        again = [plan for plan in group.plans if plan.identity in attempts]
        jobs = tuple(
            row_of(RetriedJob, plan, attempt=attempts[plan.identity], failure=failures[plan.identity]) for plan in again
        )
        done.append(RetriedGroup(group.plans[0].case.experiment, jobs, submitted, left))
        on_group(done[-1])
    return Retried(tuple(done), tuple(sorted(set(failures.values()))))


def _groups(
    ledger: Ledger, rows: Sequence[JobRow], wanted: Collection[str]
) -> Iterator[tuple[list[JobRow], tuple[tuple[str, ...], int | None]]]:
    """Yield the failed jobs to plan together, with the options of their runs: those of `wanted`, if given."""
    groups: dict[tuple[object, ...], list[JobRow]] = {}
    options_of = {run_id: recorded_options(ledger, run_id) for run_id in {row.run_id for row in rows}}
    for row in rows:
        if is_of_classes(row.failure, wanted) if wanted else policy_of(row.failure).retry:
            profile = row.profile_file or row.cluster
            key = (row.experiment, row.scale, profile, row.program, row.iterations, tuple(row.spec.argument_changes))
            groups.setdefault((*key, options_of[row.run_id]), []).append(row)
    for group in groups.values():
        yield group, options_of[group[0].run_id]


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
