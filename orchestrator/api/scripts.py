"""Batch scripts of planned cases, and jobs of these scripts that were submitted by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, CaseOptions, Session
from orchestrator.api.jobs import update
from orchestrator.api.plans import PlannedRun, plan_run
from orchestrator.errors import Problem, ReproError
from orchestrator.files import private_folder
from orchestrator.launch.denied_nodes import denied_note, with_denied_nodes
from orchestrator.launch.recover import find_started, read_rendered, token_of, write_records
from orchestrator.launch.refresh import observe_end_records
from orchestrator.launch.render import explain_job, render_job
from orchestrator.launch.sbatch import comment_of
from orchestrator.launch.templates import Explained
from orchestrator.ledger.attempts import rows_of_attempts
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import adopted_ids, record_adopted
from orchestrator.workloads import copy_programs

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    planned = plan_run(experiment, cluster, **options)
    session.note(planned.notes)
    folders, base = session.folders, Path(output or "").resolve()
    profile = with_denied_nodes(planned.cluster)
    session.note(denied_note(profile))
    stem = "-".join(filter(None, [planned.entry.short_name, options.get("workload")]))
    names = [f"{stem}-{plan.case.slug}" for plan in planned.plans]
    if explain:
        plan, name = planned.plans[0], names[0]
        log = base / f"{name}.batch.txt"
        return Rendered(planned, (), tuple(explain_job(plan, profile, base / name, folders.templates, output=log)))
    scripts = []
    for plan, name in zip(planned.plans, names, strict=True):
        folder, log = base / name, base / f"{name}.batch.txt"
        if output is None:
            scripts.append(CaseScript(name, render_job(plan, profile, folder, folders.templates, output=log)))
        else:
            comment = comment_of(token_of(plan, folder))
            text = render_job(plan, profile, folder, folders.templates, comment=comment)
            scripts.append(CaseScript(name, text, base / f"{name}.sh"))
    if output is not None:
        if base.exists() and not base.is_dir():
            raise ReproError(Problem("not a folder", f"{output}:", "give a folder for the scripts"))
        copy_programs((plan.program.workload for plan in planned.plans), folders)
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
