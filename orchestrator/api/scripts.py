"""Batch scripts of planned cases. Needs no ledger and no scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, CaseOptions, Session, with_keywords
from orchestrator.api.nodes import without_denied_nodes
from orchestrator.api.plans import PlannedRun, plan_run
from orchestrator.errors import Problem, ReproError
from orchestrator.files import private_folder
from orchestrator.launch.by_hand import token_of, write_records
from orchestrator.launch.denied_nodes import denied_note
from orchestrator.launch.render import explain_job, render_job
from orchestrator.launch.sbatch import comment_of
from orchestrator.launch.templates import Explained
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


@with_keywords(CaseOptions)
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
    profile = without_denied_nodes(planned.cluster, session=session)
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
