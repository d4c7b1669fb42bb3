"""Results with made-up numbers, for what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator.catalog.claims import Claim
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import ENDED, VERIFIED
from orchestrator.paths import Folders
from orchestrator.reading.verdict import OUT_OF_MEMORY
from orchestrator.results.cases import Result, case_results
from tests.unit.ledger.making import new_ledger, record

ROWS = """\
figure: Figure 1
title: t
workload: pretrain
gpus: 4
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
cases:
  - {case: plain, recompute: none, expect: oom}
  - {case: theirs, recompute: full, published: {tokens_per_s: 100, mfu_percent: 40}}
  - {case: ours, recompute: ours, offload: 0.5, published: {tokens_per_s: 130}}
fixed: {mbs: 1, gbs: 8}
published_as: {how: printed, source: a table, gpu: H800}
axes:
  x: {label: Method, of: [case]}
  y: {label: Tokens per second, metric: tokens_per_s}
"""
"""Three methods as the rows of a table, of which one is published to run out of memory."""

CHECKOUT = Path(__file__).resolve().parents[3]


def shipped(name: str) -> Entry:
    return find_experiment(Folders(CHECKOUT, CHECKOUT), name)


def figure_13() -> Entry:
    return shipped("figure-13")


def claiming(entry: Entry, *claims: dict[str, Any]) -> Entry:
    """The same figure with these claims alone."""
    every = {
        "says": "it is so",
        "source": "section 1",
        "stated": "printed",
        "judged_at": ["paper", *entry.experiment.scales],
    }
    read = [
        TypeAdapter(Claim).validate_python({"id": claim["kind"].replace(" ", "-")} | every | claim) for claim in claims
    ]
    return replace(entry, experiment=entry.experiment.model_copy(update={"claims": read}))


def a_row(folder: Path) -> JobRow:
    """One row of a real ledger, to be changed into others."""
    ledger = new_ledger(folder)
    record(ledger, "a")
    return replace(
        job_rows(ledger)[0], state="COMPLETED", phase=ENDED, verdict=VERIFIED, scheduler_id="7_0", nodes="n1"
    )


def measured(
    folder: Path,
    entry: Entry,
    scale: str,
    rates: Mapping[str, float],
    failed: tuple[str, ...] = (),
    out_of_memory: tuple[str, ...] = (),
    metric: str = "tflops_per_gpu",
    gpu: str | None = None,
    losses: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    noise: Mapping[str, float] | None = None,
    waits: Mapping[str, float] | None = None,
    modes: Mapping[str, str] | None = None,
) -> list[Result]:
    """Every case of the scale; those in `rates` (by name) with that many TFLOP/s, or whatever `metric` counts.

    Those in `failed` failed, those in `out_of_memory` of just that; `losses` are by name, too, and so is `noise`, the
    spread as a share of the number, 1 % for all others. `waits` are the shares of the time for which GPUs waited for
    the host, in percent, `modes` the execution modes, both by name.
    """
    base, cases = a_row(folder), expand(entry, scale)
    base = replace(base, spec=replace(base.spec, gpu=gpu))
    rows: list[JobRow] = []
    metrics: dict[int, dict[str, MeasuredMetric]] = {}
    logged: dict[int, Sequence[tuple[int, float]]] = {}
    for number, case in enumerate(cases, 1):
        if case.name in rates or case.name in failed or case.name in out_of_memory:
            row = replace(base, case_name=case.name, scale=case.scale, job_id=f"job{number}", attempt_id=number)
            row = replace(row, execution=(modes or {}).get(case.name))
            why = f"{OUT_OF_MEMORY} (rank 3)" if case.name in out_of_memory else 'exit 1, "oom"'
            bad = case.name in failed or case.name in out_of_memory
            failure = "gpu-oom" if case.name in out_of_memory else "program"
            failed_row = replace(row, state="FAILED", verdict="failed", verdict_reason=why, failure=failure)
            rows.append(failed_row if bad else row)
            metrics[number] = _metrics(rates.get(case.name, 1.0), metric, (noise or {}).get(case.name, 0.01))
            if waits and case.name in waits:
                metrics[number] |= _host_wait(waits[case.name], metrics[number]["iteration_ms"].value)
            logged[number] = (losses or {}).get(case.name, ())
    return case_results(entry, cases, rows, metrics, logged)


def _host_wait(percent: float, iteration_ms: float) -> dict[str, MeasuredMetric]:
    return {
        "host_wait_ms": MeasuredMetric("host_wait_ms", percent / 100 * iteration_ms, "ms", 0.0, 5),
        "host_wait_percent": MeasuredMetric("host_wait_percent", percent, "%", 0.0, 5),
    }


def _metrics(rate: float, metric: str, noise: float) -> dict[str, MeasuredMetric]:
    return {
        "iteration_ms": MeasuredMetric("iteration_ms", 1000 / rate, "ms", 1000 / rate * noise, 5),
        metric: MeasuredMetric(metric, rate, "TFLOP/s", rate * noise, 5),
    }
