"""Report on planned cases: a row for each valid case, refusals, warnings and totals, for people and DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import Problem, ReproError
from orchestrator.megatron.memory import solve_offload
from orchestrator.planning.batch_plan import BatchPlan, Budgeted, ChosenCases, PlannedCase
from orchestrator.planning.exact import ExactCase, absent_packages, install_command, plan_exactly
from orchestrator.planning.plan import fit_of
from orchestrator.planning.time_model import DURATION_PARTS
from orchestrator.slurm.notation import time_limit_s
from orchestrator.workloads import find_workload

CLOSED_FORM_TOLERANCE = 0.05
"""Relative difference between the closed form and the exact plan above which a note reports it."""

PlanRow = dict[str, str | int | float | None]

_ON_REQUEST: PlanRow = dict.fromkeys(
    ("iterations", "run_s", "exact_gb", "exact_stage", "exact_parameters_per_gpu_b", "alpha", "solved_alpha")
)
"""Columns of rows that only a budget, --exact and --solve-alpha add."""


@dataclass(frozen=True, slots=True)
class PlanTotals:
    """Numbers of cases and jobs, their GPU-hours and cost, and the GPUs of the largest job.

    `cost` and `cost_budget` are amounts in `currency`. `run_s` is the predicted time of all jobs, one after another, if
    there is a budget.
    """

    cases: int
    refused: int
    jobs: int
    gpu_hours: float
    cost: float | None
    currency: str | None
    most_gpus: int
    run_s: float | None
    time_budget_s: float | None
    cost_budget: float | None


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Cost of cases: a row for each valid case, the refusals, and what a reader must know of the predictions."""

    batch: BatchPlan
    selections: list[ChosenCases]
    rows: dict[str, PlanRow]
    notes: list[str]

    @property
    def budgeted(self) -> Budgeted | None:
        """Return the cases within a budget; None without one."""
        return self.batch.budgeted

    @property
    def refusals(self) -> list[Problem]:
        """Return each reason for a refusal once, with the cases that it stops."""
        return self.batch.refusals

    @property
    def detailed_rows(self) -> list[PlanRow]:
        """Return the rows with every field, and the parts of the predicted time of an iteration in ms.

        A value is None if nothing is predicted, or if no option asked for it.
        """
        parts: dict[str, PlanRow] = {}
        for planned in self.batch.planned:
            duration = planned.checked.cost and planned.checked.cost.duration
            values = {part: round(getattr(duration, part), 3) if duration else None for part in DURATION_PARTS}
            parts[planned.label] = values
        names = {planned.label: planned.entry.name for planned in self.batch.planned}
        detailed: list[PlanRow] = []
        for label, row in self.rows.items():
            kept = {name: value for name, value in row.items() if name not in ("experiment", "time_limit")}
            limit_s = time_limit_s(str(row["time_limit"]))
            detailed.append(_ON_REQUEST | {"experiment": names[label], **kept, "time_limit_s": limit_s, **parts[label]})
        return detailed

    @property
    def warnings(self) -> list[str]:
        """Return each warning once, with its cases."""
        labels: dict[str, list[str]] = {}
        for planned in self.batch.planned:
            for text in planned.checked.warnings:
                labels.setdefault(text, []).append(planned.label)
        return [
            f"{text}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            for text, names in labels.items()
        ]

    @property
    def totals(self) -> PlanTotals:
        """Return the numbers of cases and jobs, their GPU-hours and cost, and the largest job."""
        jobs, budgeted, cost = self.batch.jobs, self.budgeted, self.batch.cost
        return PlanTotals(
            cases=len(self.batch.planned),
            refused=len(self.batch.refused),
            jobs=len(jobs),
            gpu_hours=round(self.batch.gpu_hours, 2),
            cost=round(cost.amount, 2) if cost else None,
            currency=cost.currency if cost else None,
            most_gpus=max((job.case.layout.gpus for job in jobs), default=0),
            run_s=round(budgeted.total_s, 1) if budgeted else None,
            time_budget_s=budgeted.budget_s if budgeted else None,
            cost_budget=budgeted.cost_budget.amount if budgeted and budgeted.cost_budget else None,
        )


def batch_report(
    selections: list[ChosenCases], batch: BatchPlan, notes: list[str], *, solve_alpha: bool = False
) -> BatchReport:
    """Return the report on planned cases."""
    rows = {one.label: _row(one, len(selections) > 1) for one in batch.planned if not one.checked.refusals}
    if batch.budgeted is not None:
        for row, case, run_s in zip(rows.values(), batch.budgeted.cases, batch.budgeted.run_s, strict=True):
            row["iterations"], row["run_s"] = case.training.iterations, round(run_s, 1)
    if solve_alpha:
        _add_alpha(rows, batch)
    return BatchReport(batch, selections, rows, notes)


def budget_text(budgeted: Budgeted) -> str:
    """Return `5 iterations instead of 8: 6 jobs, one after another, 581 s of the 600 s of --time-budget, ...`.

    For a cost budget it is `48.20 USD of the 50.00 USD of --cost-budget`.
    """
    now, own = _range([case.training.iterations for case in budgeted.cases]), _range(budgeted.own)
    unit = " iteration" if now == "1" else " iterations"
    iterations = f"{now}{unit}, as in the experiment" if now == own else f"{now}{unit} instead of {own}"
    in_turn = ", one after another," if budgeted.budget_s is not None else ""
    jobs = f"{budgeted.jobs} jobs{in_turn}" if budgeted.jobs > 1 else "1 job"
    used = []
    if budgeted.budget_s is not None:
        used.append(f"{budgeted.total_s:.0f} s of the {budgeted.budget_s} s of --time-budget")
    if budgeted.cost_budget is not None:
        used.append(f"{budgeted.cost} of the {budgeted.cost_budget} of --cost-budget")
    return f"{iterations}: {jobs} {' and '.join(used)}, predicted within {100 * budgeted.uncertainty:.0f} %"


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"


def _add_alpha(rows: Mapping[str, PlanRow], batch: BatchPlan) -> None:
    """Add the solved offload share of each case that offloads, or could, and the published one."""
    any_solvable = False
    for planned in batch.planned:
        case = planned.case
        solvable = case.model.family == "llama" and case.training.recompute in ("none", "ours")
        if planned.label in rows:
            row = rows[planned.label]
            row["alpha"] = case.training.offload if solvable else None
            row["solved_alpha"] = round(solve_offload(case.model, case.layout, case.training), 3) if solvable else None
            any_solvable = any_solvable or solvable
    if not any_solvable:
        hint = "for example repro plan atc-figure-9 --solve-alpha"
        raise ReproError(Problem("--solve-alpha: no case keeps activations that ATC'24 would offload", hint=hint))


def exact_jobs(report: BatchReport) -> list[PlannedCase]:
    """Return the jobs that can be planned exactly; ReproError if there are none or torch is missing."""
    absent = absent_packages()
    if absent:
        raise ReproError(Problem(f"--exact needs {' and '.join(absent)}", hint=install_command()))
    jobs = [job for job in report.batch.jobs if job.case.device == "gpu"]
    if not jobs:
        raise ReproError(Problem("--exact: no case runs on GPUs", hint="leave --exact out"))
    return jobs


def with_exact_memory(report: BatchReport) -> BatchReport:
    """Return the report with the memory of the real megatron-core model in each row. Needs torch, no GPU."""
    jobs = exact_jobs(report)
    rows = {label: dict(row) for label, row in report.rows.items()}
    notes = list(report.notes)
    if not all(find_workload(job.case.workload).is_own for job in jobs):
        notes.append("the real model is today's megatron-core; Megatron-LM of 2021 computes its loss in fewer bytes")
    for job, exact in zip(jobs, plan_exactly([job.target.as_run(job.case) for job in jobs]), strict=True):
        row = rows[job.label]
        if not isinstance(exact, ExactCase):
            notes.append(f"{job.label}: not planned exactly: {exact}")
            continue
        row["exact_gb"], row["exact_stage"] = round(exact.total_bytes / 1e9, 1), exact.stage
        row["exact_parameters_per_gpu_b"] = round(exact.parameters / 1e9, 3)
        cost = job.checked.cost
        assert cost is not None and cost.memory is not None
        if cost.usable_bytes is not None:
            row["fit"] = fit_of(exact.total_bytes, cost.usable_bytes, job.target)
        if row["fit"] != cost.fit:
            notes.append(f"{job.label}: {row['fit']} by the real model, {cost.fit} by the closed form")
        difference = cost.memory.total_bytes / exact.total_bytes - 1
        if abs(difference) > CLOSED_FORM_TOLERANCE:
            notes.append(f"{job.label}: the closed form is {difference:+.1%} off the real model")
    for row in rows.values():
        for column in ("exact_gb", "exact_stage", "exact_parameters_per_gpu_b"):
            row.setdefault(column, None)
    return replace(report, rows=rows, notes=notes)


def _row(planned: PlannedCase, several: bool) -> PlanRow:
    case, cost = planned.case, planned.checked.cost
    assert cost is not None
    memory, duration = cost.memory, cost.duration
    price = planned.target.price
    money = price.of(cost.gpu_hours) if price is not None and cost.gpu_hours else None
    pinned_gb = memory.offloaded_bytes * case.layout.gpus / cost.nodes / 1e9 if memory else 0.0
    return {
        **({"experiment": planned.entry.short_name} if several else {}),
        "case": case.name,
        "nodes": cost.nodes,
        "tasks": case.layout.gpus if case.device == "cpu" else None,
        "gpus": 0 if case.device == "cpu" else case.layout.gpus,
        "microbatches": case.layout.microbatches,
        "bubble": round(case.layout.bubble(), 4),
        "parameters_per_gpu_b": round(memory.parameters / 1e9, 3) if memory else None,
        "memory_gb": round(memory.total_bytes / 1e9, 1) if memory else None,
        "usable_gb": cost.usable_bytes and round(cost.usable_bytes / 1e9, 1),
        "fit": cost.fit,
        "pinned_gb_per_node": round(pinned_gb, 1) if pinned_gb else None,
        "iteration_s": round(duration.iteration_ms / 1e3, 3) if duration else None,
        "uncertainty": round(duration.uncertainty, 3) if duration else None,
        "time_basis": duration.basis.label if duration else None,
        "job_min": cost.job_s and round(cost.job_s / 60, 1),
        "time_limit": planned.checked.resources.time_limit,
        "gpu_hours": cost.gpu_hours and round(cost.gpu_hours, 2),
        "cost": round(money.amount, 2) if money else None,
        "currency": money.currency if money else None,
        "same_job_as": planned.same_as,
    }
