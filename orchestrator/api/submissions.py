"""Submissions of experiments and their supervision; scripts to submit by hand, and the adoption of their jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, CaseOptions, Session, require_text
from orchestrator.api.catalog import require_experiment
from orchestrator.api.jobs import POLL_EVERY_S, name_list, select_jobs, update
from orchestrator.api.plans import PlannedRun, plan_run, plan_runs, require_positive, require_submittable
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.files import private_folder
from orchestrator.launch.preflight import gpu_warnings, image_warnings, require_ready
from orchestrator.launch.refresh import observe_end_records
from orchestrator.launch.render import explain_job, render_job
from orchestrator.launch.run_options import FollowedJob, RunOptions
from orchestrator.launch.sbatch import comment_of
from orchestrator.launch.submit import copy_programs
from orchestrator.launch.submit import submit as submit_plans
from orchestrator.launch.supervise import RunSupervisor, wait_for
from orchestrator.launch.templates import Explained
from orchestrator.ledger.attempts import job_rows, measured_for, result_rows, rows_of_attempts
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.experiment_files import record_experiment_file
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import adopted_ids, record_adopted
from orchestrator.ledger.tables import OPEN, RUNNING
from orchestrator.paths import Folders
from orchestrator.programs.changes import changes_of
from orchestrator.reading.failure import class_named
from orchestrator.reading.job_status import reuse_text
from orchestrator.results.outcome import FigureOutcome, judge_figure
from orchestrator.text import option_words

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
    _require_valid(options, repeat=repeat, max_parallel=max_parallel, stop_after=stop_after)
    names, after = name_list(names), name_list(after)
    run_options = {"repeat": repeat if repeat != 1 else None, "rerun": rerun, "canary": canary, "after": after}
    run_options |= {"max_parallel": max_parallel, "stop_after": stop_after, "depends_on": warm_up and "warm-up"}
    command = recorded_command(session, "submit", names, {"cluster": cluster, **options, **run_options})
    planned = plan_runs(names, cluster, repeat=repeat, max_parallel=max_parallel, **options)
    _require_ready(planned, session, warm_up)
    profile, ledger = planned[0].cluster, _ledger_with_files(planned, session)
    chosen = replace(
        _after(ledger, session.folders, profile, after),
        rerun_verified=rerun,
        max_parallel=max_parallel,
        canary=canary,
        stop_after=stop_after,
        warm_up=warm_up,
        settings=planned[0].settings,
    )
    session.note(update(ledger).complaints)
    submissions: list[Submission] = []
    for run in planned:
        submissions.append(_submit(run, ledger, command, chosen, session))
        own = {job.job_id for job in submissions[-1].jobs if job.run_id == submissions[-1].run_id}
        chosen = replace(chosen, own_jobs=chosen.own_jobs | own)
        on_submission(submissions[-1])
    return submissions


def _ledger_with_files(planned: Sequence[PlannedRun], session: Session) -> Ledger:
    """Return the ledger, which then has the experiments that were given as paths."""
    ledger = session.existing_ledger(create=True)
    assert ledger is not None
    for run in planned:
        if run.entry.path is not None:
            record_experiment_file(ledger, run.entry.name, run.entry.file)
    return ledger


def _require_valid(options: CaseOptions, **numbers: int | None) -> None:
    require_positive(**numbers)
    if options.get("example"):
        what = "--example: example values cannot be submitted"
        raise ReproError(Problem(what, hint="add --dry-run, or fill in the values: repro clusters show NAME"))


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
    planned: PlannedRun,
    ledger: Ledger,
    command: tuple[str, ...],
    chosen: RunOptions,
    session: Session,
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
            submission.planned.plans,
            submission.planned.cluster,
            ledger,
            folders,
            submission.run_id,
            submission.options,
            submission.command,
            report,
        )
        for submission in submissions
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
    ledger = session.existing_ledger(create=True)
    assert ledger is not None
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
