"""`repro plan`: whether each case is valid, fits and what it costs, before a GPU is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import completion
from orchestrator.cli.options import ClusterName, Json, Scale, Where, WorkloadName, as_typed
from orchestrator.cli.output import as_json, next_command, say, table
from orchestrator.cli.time_budget import TimeBudget, as_typed_budget, budget_line
from orchestrator.errors import Problem, ReproError
from orchestrator.text import counted
from orchestrator.workloads import find_workload

if TYPE_CHECKING:
    from orchestrator.planning.batch_plan import BatchPlan, Budgeted, CaseSelection, PlannedCase

Names = Annotated[
    list[str],
    typer.Argument(
        help="Experiments, or papers for all of theirs: figure-13, sc21.",
        autocompletion=completion.experiments_and_papers,
    ),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Build each model on paper with the real megatron-core; needs torch, no GPU.")
]
SolveAlpha = Annotated[
    bool, typer.Option("--solve-alpha", help="The smallest offload share (ATC'24's alpha) at which each case fits.")
]

DISAGREE = 0.05
"""Beyond this the closed form and the exact plan are said to disagree."""


def plan(
    names: Names,
    cluster: ClusterName = None,
    scale: Scale = None,
    where: Where = None,
    workload: WorkloadName = None,
    time_budget: TimeBudget = None,
    exact: Exact = False,
    solve_alpha: SolveAlpha = False,
    json: Json = False,
) -> None:
    """Say for each case whether it is valid, fits in memory, how long it takes and what it costs; queue nothing."""
    from orchestrator.cli.selection import choose
    from orchestrator.paths import find_folders
    from orchestrator.planning.batch_plan import plan_batch

    chosen, notes = choose(find_folders(), names, cluster, scale, where, workload)
    batch, budgeted = plan_batch(chosen), None
    if time_budget is not None:
        batch, budgeted = _within_budget(chosen, batch, time_budget)
    rows = {planned.label: _row(planned, len(chosen) > 1) for planned in batch.planned if not planned.checked.refusals}
    if budgeted is not None:
        _add_runs(rows, budgeted)
    if solve_alpha:
        _add_alpha(rows, batch)
    if exact:
        notes += _add_exact(rows, batch)
    refused = [str(problem) for problem in batch.refusals]
    warnings = _warnings(batch)
    if json:
        parts = {planned.label: _parts_ms(planned) for planned in batch.planned}
        as_json(
            {
                "cases": [row | parts[label] for label, row in rows.items()],
                "refused": refused,
                "warnings": warnings,
                "notes": notes,
                "totals": _totals(batch, budgeted),
            }
        )
    elif rows:
        shown = [
            column for column in next(iter(rows.values())) if any(r[column] not in (None, "") for r in rows.values())
        ]
        table(list(rows.values()), shown)
    for line in [*(f"warning: {text}" for text in warnings), *(f"note: {text}" for text in notes)]:
        say(line)
    for line in refused:
        say(f"repro: {line}")
    if rows:
        say(_caution(batch))
    say(_summary(batch))
    if budgeted is not None:
        say(budget_line(budgeted))
    if refused:
        raise typer.Exit(ReproError.exit_code)
    _print_next(chosen[0], cluster, f"{as_typed(workload)}{as_typed_budget(time_budget, where)}")


def _print_next(some: CaseSelection, cluster: str | None, asked: str) -> None:
    """`asked` are options that the command has in common with this one."""
    name, scales = some.entry.short_name, list(some.entry.experiment.scales)
    if cluster is not None:
        command = f"repro submit {name} --cluster {cluster} --scale {some.cases[0].scale}{asked} --dry-run"
        next_command(command, "what would be queued")
    elif scales:
        next_command(
            f"repro plan {name} --cluster local --scale {scales[-1]}", "the same figure, small enough for here"
        )
    else:
        next_command(f"repro plan {name} --cluster selene{asked}", "the same cases on another machine")


def _within_budget(
    chosen: Sequence[CaseSelection], batch: BatchPlan, time_budget: str
) -> tuple[BatchPlan, Budgeted | None]:
    """The plan of the same cases with as many iterations as fit; those that are refused stay as they are."""
    from orchestrator.planning.batch_plan import plan_batch, read_budget, within_budget

    budget_s = read_budget(time_budget)
    if len(chosen) > 1:
        hint = f"for example repro plan {chosen[0].entry.short_name} --time-budget {time_budget}"
        raise ReproError(Problem(f"--time-budget is for one experiment, and here are {len(chosen)}", hint=hint))
    running = [planned.case for planned in batch.planned if not planned.checked.refusals]
    if not running:
        return batch, None
    found = within_budget(running, chosen[0].target, budget_s)
    fitting = {case.name: case for case in found.cases}
    cases = tuple(fitting.get(case.name, case) for case in chosen[0].cases)
    return plan_batch([replace(chosen[0], cases=cases)]), found


def _add_runs(rows: Mapping[str, dict[str, Any]], budgeted: Budgeted) -> None:
    """The iterations that are left of each case, and the seconds of its job, also of one that may run out of memory."""
    for row, case, run_s in zip(rows.values(), budgeted.cases, budgeted.run_s, strict=True):
        row["iterations"], row["run_s"] = case.training.iterations, round(run_s, 1)


def _add_alpha(rows: Mapping[str, dict[str, Any]], batch: BatchPlan) -> None:
    """The alpha of each case that offloads, or could, beside the published one."""
    from orchestrator.megatron.memory import solve_offload

    found = False
    for planned in batch.planned:
        case = planned.case
        solvable = case.model.family == "llama" and case.training.recompute in ("none", "ours")
        if planned.label in rows:
            row = rows[planned.label]
            row["alpha"] = case.training.offload if solvable else None
            row["solved_alpha"] = round(solve_offload(case.model, case.layout, case.training), 3) if solvable else None
            found = found or solvable
    if not found:
        hint = "for example: repro plan atc-figure-9 --solve-alpha"
        raise ReproError(Problem("--solve-alpha: no case here keeps activations that ATC'24 would offload", hint=hint))


def _add_exact(rows: Mapping[str, dict[str, Any]], batch: BatchPlan) -> list[str]:
    """The real model's bytes beside the closed form's; returns what could not be planned and where the two disagree."""
    from orchestrator.planning.cost import fit_of
    from orchestrator.planning.exact import ExactCase, absent_packages, install_command, plan_exactly

    absent = absent_packages()
    if absent:
        raise ReproError(Problem(f"--exact needs {' and '.join(absent)}", hint=install_command()))
    jobs = [job for job in batch.jobs if job.case.device == "gpu"]
    if not jobs:
        hint = "leave --exact out: cases on CPU cores have no GPU memory to plan"
        raise ReproError(Problem("--exact: no case here runs on GPUs", hint=hint))
    say(f"building the model of {counted(len(jobs), 'job')}, a second to some ten each")
    notes: list[str] = []
    if not all(find_workload(job.case.workload).is_own for job in jobs):
        notes.append("the real model is megatron-core's of today; Megatron-LM of 2021 computes its loss in fewer bytes")
    for job, found in zip(jobs, plan_exactly([job.case for job in jobs]), strict=True):
        row = rows[job.label]
        if not isinstance(found, ExactCase):
            notes.append(f"{job.label}: not planned exactly: {found}")
            continue
        row["exact_gb"], row["exact_stage"] = round(found.total_bytes / 1e9, 1), found.stage
        row["exact_parameters_b"] = round(found.parameters / 1e9, 3)
        cost = job.checked.cost
        assert cost is not None and cost.memory is not None
        if cost.usable_bytes is not None:
            row["fit"] = fit_of(job.case, found.total_bytes, cost.usable_bytes)
        if row["fit"] != cost.fit:
            notes.append(f"{job.label}: {row['fit']} by the real model, {cost.fit} by the closed form")
        apart = cost.memory.total_bytes / found.total_bytes - 1
        if abs(apart) > DISAGREE:
            notes.append(f"{job.label}: the closed form is {apart:+.1%} off the real model")
    for row in rows.values():
        for column in ("exact_gb", "exact_stage", "exact_parameters_b"):
            row.setdefault(column, None)
    return notes


def _row(planned: PlannedCase, several: bool) -> dict[str, Any]:
    case, cost = planned.case, planned.checked.cost
    assert cost is not None
    memory, duration = cost.memory, cost.duration
    return {
        **({"experiment": planned.entry.short_name} if several else {}),
        "case": case.name,
        "nodes": cost.nodes,
        "gpus": case.layout.gpus,
        "microbatches": case.layout.microbatches,
        "bubble": round(case.layout.bubble(), 4),
        "parameters_b": memory and round(memory.parameters / 1e9, 3),
        "memory_gb": memory and round(memory.total_bytes / 1e9, 1),
        "usable_gb": cost.usable_bytes and round(cost.usable_bytes / 1e9, 1),
        "fit": cost.fit,
        "pinned_gb_per_node": memory and _pinned_gb(memory.offloaded_bytes * case.layout.gpus / cost.nodes),
        "iteration_s": duration and round(duration.iteration_ms / 1e3, 3),
        "uncertainty": duration and round(duration.uncertainty, 3),
        "job_min": cost.job_s and round(cost.job_s / 60, 1),
        "time_limit": planned.checked.resources.time_limit,
        "gpu_hours": cost.gpu_hours and round(cost.gpu_hours, 2),
        "same_job_as": planned.same_as,
    }


def _parts_ms(planned: PlannedCase) -> dict[str, float | None]:
    """Return the parts of the predicted time of an iteration, for --json; None where no time is predicted."""
    from orchestrator.planning.time_model import DURATION_PARTS

    duration = planned.checked.cost and planned.checked.cost.duration
    return {part: round(getattr(duration, part), 3) if duration else None for part in DURATION_PARTS}


def _pinned_gb(pinned_bytes: float) -> float | None:
    return round(pinned_bytes / 1e9, 1) if pinned_bytes else None


def _warnings(batch: BatchPlan) -> list[str]:
    """Each warning once, with the cases it is about."""
    about: dict[str, list[str]] = {}
    for planned in batch.planned:
        for text in planned.checked.warnings:
            about.setdefault(text, []).append(planned.label)
    return [f"{text}: {_some(labels)}" for text, labels in about.items()]


def _some(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"


def _totals(batch: BatchPlan, budgeted: Budgeted | None = None) -> dict[str, Any]:
    jobs = batch.jobs
    of_budget = {"run_s": round(budgeted.total_s, 1), "time_budget_s": budgeted.budget_s} if budgeted else {}
    return {
        "cases": len(batch.planned),
        "refused": len(batch.refused),
        "jobs": len(jobs),
        "gpu_hours": round(batch.gpu_hours, 2),
        "most_gpus": max((job.case.layout.gpus for job in jobs), default=0),
        **of_budget,
    }


def _caution(batch: BatchPlan) -> str:
    """What the numbers are, and which of them nobody has held against a measurement."""
    costs = [planned.checked.cost for planned in batch.planned if planned.checked.cost is not None]
    memory = sum(cost.memory is not None and not cost.memory.calibrated for cost in costs)
    time = sum(cost.duration is not None and not cost.duration.calibrated for cost in costs)
    if not memory and not time:
        return "memory and time are predictions"
    unheld = f"the memory of {memory} and the time of {time} rest on a model that was never held to such a case"
    return f"memory and time are predictions; of {counted(len(costs), 'case')} {unheld}"


def _summary(batch: BatchPlan) -> str:
    totals, targets = _totals(batch), dict.fromkeys(planned.checked.cluster for planned in batch.planned)
    text = f"{counted(totals['cases'], 'case')} on {' and '.join(targets)}"
    if totals["refused"]:
        text += f", {totals['refused']} refused"
    text += f": {counted(totals['jobs'], 'job')}"
    if batch.gpu_hours:
        text += f", {batch.gpu_hours:.4g} GPU-hours as predicted, {totals['most_gpus']} GPUs at most"
    return text
