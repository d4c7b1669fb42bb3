"""Counts of submitted and verified jobs by experiment, scale, cluster and program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.ledger.readonly_file import rows_in_file

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger

_COUNTS = """
    SELECT runs.experiment, runs.scale, runs.cluster, jobs.workload,
        count(DISTINCT jobs.id), count(DISTINCT CASE WHEN attempts.verdict = 'verified' THEN jobs.id END)
    FROM run_jobs
        JOIN runs ON runs.id = run_jobs.run_id
        JOIN jobs ON jobs.id = run_jobs.job_id
        JOIN attempts ON attempts.job_id = jobs.id
    GROUP BY runs.experiment, runs.scale, runs.cluster, jobs.workload
    ORDER BY runs.experiment, runs.scale, runs.cluster, jobs.workload
"""


@dataclass(frozen=True, slots=True)
class JobCount:
    """Jobs of an experiment that were submitted, and how many are verified. `workload` is the program that ran."""

    experiment: str
    scale: str
    cluster: str
    workload: str
    jobs: int
    verified: int


def job_counts(ledger: Ledger) -> list[JobCount]:
    """Return the counts of all experiments."""
    from orchestrator.ledger.readonly_sql import asked  # loads the database

    with asked(ledger, _COUNTS) as answer:
        return _read(answer.rows)


def job_counts_in_file(file: Path) -> list[JobCount] | None:
    """Return the same counts without the database's modules; None if the file needs them, as in `rows_in_file`."""
    rows = rows_in_file(file, _COUNTS)
    return None if rows is None else _read(rows)


def _read(rows: Iterable[Sequence[Any]]) -> list[JobCount]:
    return [JobCount(*row) for row in rows]
