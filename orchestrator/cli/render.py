"""`repro render`: the scripts, to read or to submit by hand."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from orchestrator.cli.options import ExperimentName, OnCluster, Scale, Where, WorkloadName, as_typed
from orchestrator.cli.output import data, next_command, say
from orchestrator.cli.time_budget import TimeBudget, as_typed_budget
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.clusters.resolve import Cluster
    from orchestrator.launch.templates import Explained
    from orchestrator.planning.plan import Plan

OutputFolder = Annotated[Optional[Path], typer.Option("--output", "-o", help="Write every script into this folder.")]  # noqa: UP045
Explain = Annotated[bool, typer.Option("--explain", help="Each line with where it comes from, of the first script.")]


def render(
    experiment: ExperimentName,
    cluster: OnCluster,
    scale: Scale = None,
    where: Where = None,
    workload: WorkloadName = None,
    time_budget: TimeBudget = None,
    output: OutputFolder = None,
    explain: Explain = False,
) -> None:
    """Print the script of each chosen case, to read; with -o write the scripts and what they import, to submit."""
    from orchestrator.cli.selection import planned
    from orchestrator.launch.batches import copy_programs
    from orchestrator.launch.render import explain_job, render_job
    from orchestrator.paths import find_folders
    from orchestrator.planning.batch_plan import read_budget

    budget_s = read_budget(time_budget) if time_budget is not None else None
    folders = find_folders()
    entry, profile, plans = planned(folders, experiment, cluster, scale, where, workload, budget_s)
    stem = f"{entry.short_name}-{workload}" if workload else entry.short_name
    base = (output or Path()).resolve()
    if explain:
        name = f"{stem}-{plans[0].case.slug}"
        lines = explain_job(plans[0], profile, base / name, folders.templates, output=base / f"{name}.batch.txt")
        _show_origins(lines, plans, profile)
        return
    texts: dict[str, str] = {}
    for plan in plans:
        name = f"{stem}-{plan.case.slug}"
        texts[name] = render_job(plan, profile, base / name, folders.templates, output=base / f"{name}.batch.txt")
    launcher = "sbatch" if profile.is_slurm else "bash"
    if output is None:
        for text in texts.values():
            data(text.rstrip("\n"))
        asked = f"{as_typed(workload)}{as_typed_budget(time_budget, where)}"
        example = f"repro render {entry.short_name} --cluster {cluster}{asked} -o jobs"
        next_command(example, f"write {counted(len(texts), 'script')}, to {launcher} by hand")
        return
    copy_programs(plans, folders)
    base.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = base / f"{name}.sh"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o750)
        data(str(path))
    next_command(f"{launcher} {shlex.quote(f'{base / next(iter(texts))}.sh')}", "or any other of them")


def _show_origins(lines: list[Explained], plans: list[Plan], profile: Cluster) -> None:
    """Each line of the first script behind the file and line, the experiment or the workload that it comes from."""
    origins = [", ".join(line.origins) for line in lines]
    width = max(map(len, origins))
    for origin, line in zip(origins, lines, strict=True):
        data(f"{origin:<{width}}  {line.text}".rstrip())
    if len(plans) > 1:
        say(f"this is {plans[0].case.name}, the first of {len(plans)}; --where chooses another")
    next_command(f"repro clusters show {profile.name} --resolved", "where each value of the profile was written")
