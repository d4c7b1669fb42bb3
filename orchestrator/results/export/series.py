"""What the logs of jobs say line by line, as rows for others: one per interval line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow
from orchestrator.ledger.measurements import iterations_of
from orchestrator.ledger.tables import fields
from orchestrator.results.export.columns import ITERATION_COLUMNS, OF_JOB, Row
from orchestrator.results.export.rows import of_job, ordered

_NAMES = [column.name for column in ITERATION_COLUMNS]


def iteration_rows(ledger: Ledger, rows: Sequence[JobRow]) -> Iterator[Row]:
    """Every line that the ledger has of these jobs, job by job, so that as many as there are need no memory.

    Also of jobs that run or failed: state and verdict stand in each row.
    """
    for row in rows:
        shared = ordered(of_job(row, OF_JOB), OF_JOB)
        for line in iterations_of(ledger, row.attempt_id):
            yield ordered(fields(line), _NAMES) | shared
