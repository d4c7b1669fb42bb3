"""Whether the figure came out: a row per case, a line per claim, and the exit code."""

from __future__ import annotations

from orchestrator.catalog.library import Entry
from orchestrator.cli.options import as_typed
from orchestrator.cli.output import as_json, data, next_command, say, table
from orchestrator.cli.session import bring_up_to_date, existing_ledger
from orchestrator.errors import EXIT_FAILED, EXIT_OK, Problem, ReproError
from orchestrator.ledger.database import Ledger
from orchestrator.paths import Folders, find_folders
from orchestrator.results.cases import Result
from orchestrator.results.claims import Used
from orchestrator.results.evidence import shown_number
from orchestrator.results.export.rows import claim_rows
from orchestrator.results.outcome import FigureOutcome, read_outcome

SHARES = ("percent_of_peak", "percent_of_peak_computed", "mfu_percent")
"""Shares of a GPU's dense peak: by SC21's equation 3, of the products that were computed, and model FLOPs only."""


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


def outcome_now(
    experiment: str | None,
    scale: str | None,
    cluster: str | None,
    workload: str | None,
    database: str | None,
    *,
    running: bool = False,
) -> FigureOutcome:
    """What was submitted of an experiment, after the scheduler was asked and the logs were read.

    With `running` also those of jobs that still run: for a command that gives out their iterations.
    """
    folders, ledger = ledger_now(database, running=running)
    now = read_outcome(ledger, folders, experiment, scale, cluster, workload)
    if now.program:
        say(f"note: {now.entry.short_name} with {now.program}")
    return now


def ledger_now(database: str | None, *, running: bool = False) -> tuple[Folders, Ledger]:
    """The ledger after the scheduler was asked and the logs were read; ReproError where nothing was ever submitted."""
    folders = find_folders()
    ledger = existing_ledger(folders, database)
    if ledger is None:
        raise ReproError(Problem("nothing was submitted yet", hint="repro submit figure-13 --cluster local --wait"))
    for complaint in bring_up_to_date(ledger, running=running):
        say(f"note: {complaint}")
    return folders, ledger


def case_rows(now: FigureOutcome) -> list[dict[str, object]]:
    metric = now.entry.experiment.axes.y.metric
    rows: list[dict[str, object]] = []
    for result in now.results:
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
                "repeats": timing.repeats if timing and timing.repeats > 1 else None,
                metric: result.value(metric),
                **{name: result.value(name) for name in SHARES},
                "published": result.published.value if result.published else None,
                "execution": " and ".join(result.modes) or None,
                "host_wait_percent": result.value("host_wait_percent"),
                "host_bound": result.is_host_bound,
                "why": _why(result),
            }
        )
    return rows


def _why(result: Result) -> str | None:
    """Return why a case has no number, or why its number cannot be compared."""
    if result.flag or result.row is None:
        return result.flag
    return result.row.verdict_reason or (f"host-bound: {result.host_bound}" if result.host_bound else None)


def print_cases(now: FigureOutcome) -> None:
    rows, metric = case_rows(now), now.entry.experiment.axes.y.metric
    there = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    repeats = [name for name in ("repeats",) if name in there]
    optional = [name for name in (*SHARES, "published", "why") if name in there and name != metric]
    always = ("job", "case", "state", "verdict", "iteration_ms", "spread_ms", "used")
    table(rows, [*always, *repeats, metric, *optional])


def print_claims(now: FigureOutcome, to_stdout: bool, with_numbers: bool = False) -> None:
    """`holds`, `fails` or `not judged`, what the paper says, and what was seen; below it the numbers behind it."""
    for verdict in now.claims:
        lines = [
            f"{verdict.verdict:<10}  {verdict.claim.says} ({verdict.claim.source})",
            f"{'':<10}  {verdict.because}",
        ]
        if with_numbers:
            lines += [f"{'':<12}{_shown(used)}" for used in verdict.used]
        if to_stdout:
            data("\n".join(lines))
        else:
            say("\n".join(lines))


def _shown(used: Used) -> str:
    spread = f" ± {shown_number(used.spread)}" if used.spread is not None else ""
    return f"{used.case}  {used.metric} {shown_number(used.value)}{spread}  (job {used.job})"
