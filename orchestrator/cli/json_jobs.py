"""Rows of jobs, cases, claims and files for JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from orchestrator import api

if TYPE_CHECKING:
    from orchestrator.cli.json_plan_rows import CheckedCase, PlannedJob
    from orchestrator.cli.json_rows import CaseOutcome, JobRef, JudgedClaim, RetriedJob
    from orchestrator.cli.json_site_rows import FileRow


def job_refs(jobs: Sequence[api.JobRow], reused: Mapping[str, str] | None = None) -> list[JobRef]:
    """Return the rows of a JSON document; `reused` has the origin and age of a measurement by job id."""
    return [
        {
            "job": row.job_id,
            "experiment": row.experiment,
            "scale": row.scale,
            "cluster": row.cluster,
            "case": row.case_name,
            "repeat": row.repeat,
            "attempt": row.number,
            "state": row.state,
            "verdict": row.verdict,
            "id": row.scheduler_id,
            "reused": (reused or {}).get(row.job_id),
            "origin": row.origin,
            "why": row.verdict_reason,
        }
        for row in jobs
    ]


def claim_rows(outcome: api.FigureOutcome) -> list[JudgedClaim]:
    """Return the rows of the claims of a JSON document."""
    return [
        {
            "experiment": outcome.entry.name,
            "scale": outcome.scale,
            "cluster": outcome.cluster,
            "claim": row["claim"],
            "kind": verdict.claim.kind,
            "says": row["says"],
            "source": row["source"],
            "verdict": row["verdict"],
            "because": row["because"],
            "margin": verdict.margin,
            "used": verdict.used,
        }
        for row, verdict in zip(api.claim_rows(outcome.claims), outcome.claims, strict=True)
    ]


def case_rows(outcome: api.FigureOutcome) -> list[CaseOutcome]:
    """Return the results of the cases at the end of a run."""
    metric = outcome.entry.experiment.axes.y.metric
    rows: list[CaseOutcome] = []
    for result in outcome.results:
        row, timing = result.row, result.metric("iteration_ms")
        rows.append(
            {
                "experiment": outcome.entry.name,
                "scale": outcome.scale,
                "cluster": outcome.cluster,
                "job": row.job_id if row else None,
                "case": result.case.name,
                "workload": result.case.workload,
                "state": row.state if row else "not submitted",
                "verdict": row.verdict if row else None,
                "iteration_ms": timing.value if timing else None,
                "spread_ms": timing.spread if timing else None,
                "used": timing.count if timing else None,
                "repeats": timing.repeats if timing and timing.repeats > 1 else None,
                "metric": metric,
                "value": result.value(metric),
                "percent_of_peak": result.value("percent_of_peak"),
                "percent_of_peak_computed": result.value("percent_of_peak_computed"),
                "mfu_percent": result.value("mfu_percent"),
                "published": result.published.value if result.published else None,
                "execution": " and ".join(result.modes) or None,
                "host_wait_percent": result.value("host_wait_percent"),
                "host_bound": result.is_host_bound,
                "why": _why(result),
                "newer": result.newer_text,
                "reused": f"from {result.measured_for}" if result.measured_for else None,
            }
        )
    return rows


def _why(result: api.Result) -> str | None:
    """Return why a case has no number, or why its number cannot be compared."""
    if result.flag or result.row is None:
        return result.flag
    return result.row.verdict_reason or (f"host-bound: {result.host_bound}" if result.host_bound else None)


def checked_cases(report: api.BatchReport) -> list[CheckedCase]:
    """Return the planned cases as rows of a JSON document."""
    return cast("list[CheckedCase]", report.detailed_rows)


def planned_jobs(planned: api.PlannedRun) -> list[PlannedJob]:
    """Return the jobs of a dry run."""
    return [
        {
            "job": plan.identity,
            "experiment": plan.case.experiment,
            "scale": plan.case.scale,
            "cluster": planned.cluster.name,
            "case": plan.case.name,
            "repeat": plan.repeat,
            "nodes": plan.resources.nodes,
            "tasks": plan.resources.tasks,
            "gpus": plan.resources.nodes * plan.resources.gpus_per_node,
            "microbatches": plan.case.layout.microbatches,
            "bubble": round(plan.case.layout.bubble(), 4),
            "iterations": plan.case.training.iterations,
            "time_limit_s": api.time_limit_s(plan.resources.time_limit),
            "warnings": plan.warnings,
            "workload": plan.program.workload,
            "code": plan.program.code,
            "image": plan.program.image_path,
            "image_digest": plan.program.image_digest,
            "data": plan.program.data,
        }
        for plan in planned.plans
    ]


def retried_jobs(group: api.RetriedGroup) -> list[RetriedJob]:
    """Return the jobs of a group that were submitted again, or would be."""
    experiment = group.experiment
    return [
        {"job": job.job_id, "experiment": experiment, "case": job.label, "attempt": job.attempt} for job in group.jobs
    ]


def file_rows(kind: str, *files: Path | None) -> list[FileRow]:
    """Return the rows of the files that were written."""
    return [{"file": file, "kind": kind, "bytes": file.stat().st_size} for file in files if file is not None]
