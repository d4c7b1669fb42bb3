"""Report on planned cases: a row for each valid case, refusals, warnings and totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated

from orchestrator.errors import Problem, ReproError
from orchestrator.fields import Column, Columns, Field, TableRow, row_of
from orchestrator.planning.batch_plan import BatchPlan, Budgeted, ChosenCases, PlannedCase
from orchestrator.planning.plan import Fit, fit_of
from orchestrator.programs.record import BasisName, ExactCase, programs
from orchestrator.slurm.notation import time_limit_s
from orchestrator.text import counted

CLOSED_FORM_TOLERANCE = 0.05
"""Relative difference between the closed form and the exact plan above which a note reports it."""


def _part_columns() -> tuple[Column, ...]:
    """Return a column for each part of the predicted time of any program."""
    parts = dict.fromkeys(part for program in programs().values() for part in program.time_parts())
    return tuple(Column(part, "number", "part of the time of an iteration", "ms") for part in parts)


@dataclass(frozen=True, kw_only=True)
class PlanRow(TableRow):
    """A case with its predicted memory, time and cost; null where nothing is predicted, or nothing was asked."""

    experiment: Annotated[str, Field("full name of the experiment", of="entry.name", main=1)]
    case: Annotated[str, Field("case, in the syntax of `--where`", of="case.name", main=2)]
    nodes: Annotated[int, Field("nodes", of="predicted.nodes", main=3)]
    tasks: Annotated[int | None, Field("processes of a case on CPU cores")]
    gpus: Annotated[int, Field("GPUs of the job; 0 on CPU cores", main=4)]
    microbatches: Annotated[int | None, Field("microbatches", of="case.microbatches")]
    bubble: Annotated[
        float | None,
        Field("share of the pipeline's time in which a GPU waits for another stage", of="case.bubble"),
    ]
    parameters_per_gpu_b: Annotated[float | None, Field("parameters of a GPU", "10^9")]
    memory_gb: Annotated[float | None, Field("predicted memory of a GPU", "GB", main=5)]
    usable_gb: Annotated[float | None, Field("GPU memory that tensors can use", "GB")]
    fit: Annotated[
        Fit | None,
        Field("`tight`: more than the usable memory, at most the whole memory of a GPU", of="predicted.fit", main=6),
    ]
    pinned_gb_per_node: Annotated[float | None, Field("pinned host memory of a node", "GB")]
    iteration_s: Annotated[float | None, Field("time of an iteration", "s", main=7)]
    uncertainty: Annotated[float | None, Field("uncertainty of the time, as a share of it")]
    time_basis: Annotated[BasisName | None, Field("what the prediction of the time rests on", of="duration.basis")]
    job_min: Annotated[float | None, Field("time of the job", "min")]
    time_limit: Annotated[str, Field("time limit", of="checked.resources.time_limit")]
    gpu_hours: Annotated[float | None, Field("GPU-hours", "h", main=8)]
    cost: Annotated[float | None, Field("cost, in `currency`", main=9)]
    currency: Annotated[str | None, Field("currency of the cost", of="money.currency")]
    same_job_as: Annotated[str | None, Field("case with the same job", of="same_as")]
    iterations: Annotated[int | None, Field("iterations inside the budget", main=10)] = None
    run_s: Annotated[float | None, Field("time of the job inside the budget", "s")] = None
    exact_gb: Annotated[float | None, Field("memory of the real model, with --exact", "GB")] = None
    exact_stage: Annotated[int | None, Field("pipeline stage with this memory")] = None
    exact_parameters_per_gpu_b: Annotated[float | None, Field("parameters of its GPU", "10^9")] = None
    alpha: Annotated[float | None, Field("offloaded share of the case, with --solve-alpha")] = None
    solved_alpha: Annotated[float | None, Field("smallest share that fits")] = None
    time_limit_s: Annotated[int, Field("time limit", "s")]
    parts: Annotated[Mapping[str, float | None], Columns(_part_columns)]


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
        jobs, budgeted, cost = self.batch.jobs, self.batch.budgeted, self.batch.cost
        return PlanTotals(
            cases=len(self.batch.planned),
            refused=len(self.batch.refused),
            jobs=len(jobs),
            gpu_hours=round(self.batch.gpu_hours, 2),
            cost=round(cost.amount, 2) if cost else None,
            currency=cost.currency if cost else None,
            most_gpus=max((job.case.gpus for job in jobs), default=0),
            run_s=round(budgeted.total_s, 1) if budgeted else None,
            time_budget_s=budgeted.budget_s if budgeted else None,
            cost_budget=budgeted.cost_budget.amount if budgeted and budgeted.cost_budget else None,
        )


def batch_report(
    selections: list[ChosenCases], batch: BatchPlan, notes: list[str], *, solve_alpha: bool = False
) -> BatchReport:
    """Return the report on planned cases."""
    rows = {one.label: _row(one) for one in batch.planned if not one.checked.refusals}
    if batch.budgeted is not None:
        for label, case, run_s in zip(list(rows), batch.budgeted.cases, batch.budgeted.run_s, strict=True):
            rows[label] = replace(rows[label], iterations=case.iterations, run_s=round(run_s, 1))
    if solve_alpha:
        _add_alpha(rows, batch)
    return BatchReport(batch, selections, rows, [*notes, *_without_prediction(batch)])


def _without_prediction(batch: BatchPlan) -> Iterator[str]:
    """Yield where the GPU-hours of each program without a prediction come from."""
    for name in dict.fromkeys(job.case.program for job in batch.without_prediction):
        jobs = [job for job in batch.without_prediction if job.case.program == name]
        measured = [job for job in jobs if job.checked.cost is not None and job.checked.cost.job_s is not None]
        text = f"no prediction for {name}"
        if any(job.checked.resources.gpus for job in jobs):
            rest = "" if len(measured) == len(jobs) else "the time limit"
            past = f"the last measured run for {len(measured)} of {counted(len(jobs), 'job')}" if measured else ""
            text += f"; GPU-hours are those of {' and of '.join(filter(None, (past, rest)))}"
        yield text


def budget_text(budgeted: Budgeted) -> str:
    """Return `5 iterations instead of 8: 6 jobs, one after another, 581 s of the 600 s of --time-budget, ...`.

    For a cost budget it is `48.20 USD of the 50.00 USD of --cost-budget`.
    """
    now, own = _range([case.iterations for case in budgeted.cases]), _range(budgeted.own)
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


def _add_alpha(rows: dict[str, PlanRow], batch: BatchPlan) -> None:
    """Add the solved offload share of each case that offloads, or could, and the published one."""
    shares = {planned.label: planned.case.record.offload_shares(planned.case) for planned in batch.planned}
    if not any(shares.values()):
        hint = "for example repro plan atc-figure-9 --solve-alpha"
        raise ReproError(Problem("--solve-alpha: no case keeps activations that ATC'24 would offload", hint=hint))
    for label in rows:
        if (of_case := shares[label]) is not None:
            rows[label] = replace(rows[label], alpha=of_case[0], solved_alpha=round(of_case[1], 3))


def exact_jobs(report: BatchReport) -> list[PlannedCase]:
    """Return the jobs that can be planned exactly; ReproError if there are none or torch is missing."""
    for record in dict.fromkeys(planned.case.record for planned in report.batch.planned):
        absent, install_command = record.absent_packages(exact=True)
        if absent:
            raise ReproError(Problem(f"--exact needs {' and '.join(absent)}", hint=install_command))
    jobs = [job for job in report.batch.jobs if job.case.device == "gpu" and job.case.record.predicts]
    if not jobs:
        raise ReproError(Problem("--exact: no case runs on GPUs", hint="leave --exact out"))
    return jobs


def with_exact_memory(report: BatchReport) -> BatchReport:
    """Return the report with the memory of the real megatron-core model in each row. Needs torch, no GPU."""
    jobs = exact_jobs(report)
    rows = dict(report.rows)
    notes = list(report.notes)
    notes += dict.fromkeys(job.case.record.exact_note for job in jobs if job.case.record.exact_note)
    families = {job.case.record.family: job.case.record for job in jobs}
    results: dict[str, ExactCase | str] = {}
    for family, record in families.items():
        own = [job for job in jobs if job.case.record.family == family]
        results |= zip([job.label for job in own], record.exact([(job.case, job.target) for job in own]), strict=True)
    for job in jobs:
        exact = results[job.label]
        if not isinstance(exact, ExactCase):
            notes.append(f"{job.label}: not planned exactly: {exact}")
            continue
        cost = job.checked.cost
        assert cost is not None and cost.memory is not None
        fit = cost.fit
        if cost.usable_bytes is not None:
            fit = fit_of(exact.total_bytes, cost.usable_bytes, job.target)
        rows[job.label] = replace(
            rows[job.label],
            exact_gb=round(exact.total_bytes / 1e9, 1),
            exact_stage=exact.stage,
            exact_parameters_per_gpu_b=round(exact.parameters / 1e9, 3),
            fit=fit,
        )
        if fit != cost.fit:
            notes.append(f"{job.label}: {fit} by the real model, {cost.fit} by the closed form")
        difference = cost.memory.total_bytes / exact.total_bytes - 1
        if abs(difference) > CLOSED_FORM_TOLERANCE:
            notes.append(f"{job.label}: the closed form is {difference:+.1%} off the real model")
    return replace(report, rows=rows, notes=notes)


def _row(planned: PlannedCase) -> PlanRow:
    case, cost = planned.case, planned.checked.cost
    assert cost is not None
    memory, duration = cost.memory, cost.duration
    parts = duration.parts if duration is not None else {}
    price = planned.target.price
    money = price.of(cost.gpu_hours) if price is not None and cost.gpu_hours else None
    pinned_gb = memory.offloaded_bytes * case.gpus / cost.nodes / 1e9 if memory else 0.0
    on_cpu = case.device == "cpu"
    return row_of(
        PlanRow,
        planned,
        SimpleNamespace(predicted=cost, duration=duration, money=money),
        tasks=planned.checked.resources.tasks if on_cpu else None,
        gpus=planned.checked.resources.gpus,
        parameters_per_gpu_b=round(memory.parameters / 1e9, 3) if memory else None,
        memory_gb=round(memory.total_bytes / 1e9, 1) if memory else None,
        usable_gb=cost.usable_bytes and round(cost.usable_bytes / 1e9, 1),
        pinned_gb_per_node=round(pinned_gb, 1) if pinned_gb else None,
        iteration_s=round(duration.iteration_ms / 1e3, 3) if duration else None,
        uncertainty=round(duration.uncertainty, 3) if duration else None,
        job_min=cost.job_s and round(cost.job_s / 60, 1),
        gpu_hours=cost.gpu_hours and round(cost.gpu_hours, 2),
        cost=round(money.amount, 2) if money else None,
        time_limit_s=time_limit_s(planned.checked.resources.time_limit),
        parts={part: round(parts[part], 3) if part in parts else None for part in planned.case.record.time_parts()},
    )
