"""Whether the figure came out: a row per case, a line per claim, and the exit code."""

from __future__ import annotations

from orchestrator.catalog.library import Entry
from orchestrator.cli.options import as_typed
from orchestrator.cli.output import as_json, data, next_command, say, table
from orchestrator.cli.scope import Outcome, read_outcome
from orchestrator.errors import EXIT_FAILED, EXIT_OK
from orchestrator.folders import Folders
from orchestrator.ledger.database import Ledger
from orchestrator.results.export import claim_rows


def outcome(ledger: Ledger, folders: Folders, entry: Entry, scale: str, cluster: str, workload: str, json: bool) -> int:
    """Print the table of cases and a line per claim; the exit code says whether all of it is well."""
    now = read_outcome(ledger, folders, entry.name, scale, cluster, workload)
    if json:
        as_json({"cases": case_rows(now), "claims": claim_rows(now.claims)})
    else:
        print_cases(now)
        print_claims(now, to_stdout=True)
    failed = now.failures
    if failed:
        next_command(f"repro logs {failed[0].job_id}", f"why {failed[0].case_name} failed")
    else:
        option = as_typed(workload if now.program else None)
        next_command(f"repro plot {entry.short_name}{option}", "the figure as a picture")
    return EXIT_FAILED if now.failed else EXIT_OK


def case_rows(now: Outcome) -> list[dict[str, object]]:
    metric = now.entry.experiment.axes.y.metric
    rows: list[dict[str, object]] = []
    for result in now.found:
        row = result.row
        timing = result.metric("iteration_ms")
        rows.append(
            {
                "job": row.job_id if row else None,
                "case": result.case.name,
                "workload": result.case.workload,
                "state": row.state if row else "not submitted",
                "verdict": row.verdict if row else None,
                "iteration_ms": timing.value if timing else None,
                "spread_ms": timing.spread if timing else None,
                "used": timing.count if timing else None,
                metric: result.value(metric),
                "percent_of_peak": result.value("percent_of_peak"),
                "published": result.published.value if result.published else None,
                "why": row.verdict_reason if row else None,
            }
        )
    return rows


def print_cases(now: Outcome) -> None:
    rows = case_rows(now)
    optional = [name for name in ("percent_of_peak", "published", "why") if any(row[name] is not None for row in rows)]
    always = ("job", "case", "state", "verdict", "iteration_ms", "spread_ms", "used")
    table(rows, [*always, now.entry.experiment.axes.y.metric, *optional])


def print_claims(now: Outcome, to_stdout: bool) -> None:
    """`holds`, `fails` or `not judged`, what the paper says, and what was seen."""
    for verdict in now.claims:
        line = f"{verdict.verdict:<10}  {verdict.claim.says} ({verdict.claim.source})\n{'':<10}  {verdict.because}"
        if to_stdout:
            data(line)
        else:
            say(line)
