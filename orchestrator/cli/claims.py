"""`repro claims`: a verdict per claim, and an exit code that an acceptance test can use."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.options import ClusterName, Database, Json, MaybeExperiment, OnlyScale, OnlyWorkload
from orchestrator.cli.output import as_json, data, next_command, say
from orchestrator.errors import EXIT_FAILED, Problem, ReproError

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.results.outcome import FigureOutcome


def claims(
    experiment: MaybeExperiment = None,
    scale: OnlyScale = None,
    cluster: ClusterName = None,
    workload: OnlyWorkload = None,
    json: Json = False,
    database: Database = None,
) -> None:
    """What the paper says about its figures: what holds, what fails, and what cannot be judged.

    Of all experiments that were submitted, each at the scale, on the cluster and with the program that it ran with
    last, unless they are given.
    """
    from orchestrator.cli.outcome import ledger_now, print_claims
    from orchestrator.cli.selection import require_known
    from orchestrator.results.outcome import read_outcome

    folders, ledger = ledger_now(database)
    require_known(workload)
    names = [experiment] if experiment else _submitted(ledger, scale, cluster, workload)
    if not names:
        raise ReproError(Problem("no such jobs were submitted", hint="repro status shows what was"))
    found: list[FigureOutcome] = []
    problems: list[Problem] = []
    for name in names:
        try:
            found.append(read_outcome(ledger, folders, name, scale, cluster, workload))
        except ReproError as error:  # another experiment's file: what can be judged is, and the rest is said
            problems += error.problems
    if json:
        as_json([row for now in found for row in _rows(now)])
    else:
        for now in found:
            data(_title(now))
            print_claims(now, to_stdout=True, with_numbers=True)
    if problems:
        raise ReproError(*problems)
    _end(found)


def _submitted(ledger: Ledger, scale: str | None, cluster: str | None, workload: str | None) -> list[str]:
    from orchestrator.ledger.attempts import job_summaries

    rows = job_summaries(ledger)
    asked = [
        row.experiment
        for row in rows
        if scale in (None, row.scale) and cluster in (None, row.cluster) and workload in (None, row.workload)
    ]
    return list(dict.fromkeys(asked))


def _title(now: FigureOutcome) -> str:
    """`figure-13 at scale cpu on here: 2 hold, 1 not judged`."""
    count = Counter[str](verdict.verdict for verdict in now.claims)
    words = {"holds": "hold", "fails": "fail", "not judged": "not judged"}
    said = [f"{count[verdict]} {word}" for verdict, word in words.items() if count[verdict]]
    ran = f" with {now.program}" if now.program else ""
    return f"{now.entry.short_name} at scale {now.scale} on {now.cluster}{ran}: {', '.join(said) or 'no claims'}"


def _rows(now: FigureOutcome) -> list[dict[str, Any]]:
    from orchestrator.ledger.tables import field_values
    from orchestrator.results.export.rows import claim_rows

    where = {"experiment": now.entry.name, "scale": now.scale, "cluster": now.cluster}
    return [
        {**where, "kind": verdict.claim.kind, **row, "used": [field_values(used) for used in verdict.used]}
        for row, verdict in zip(claim_rows(now.claims), now.claims, strict=True)
    ]


def _end(found: list[FigureOutcome]) -> None:
    """What failed, what to type next, and the exit code."""
    failures = [row for now in found for row in now.failures]
    for row in failures:
        say(f"failed: {row.label} of {row.experiment} (job {row.job_id}): {row.verdict_reason}")
    if failures:
        next_command(f"repro logs {failures[0].job_id}", f"why {failures[0].case_name} failed")
    else:
        broken = next((now for now in found if now.failed), found[0])
        next_command(f"repro compare {broken.entry.short_name}", "the numbers beside the published ones")
    if any(now.failed for now in found):
        raise typer.Exit(EXIT_FAILED)
