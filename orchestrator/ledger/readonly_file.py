"""Read-only connections to the SQLite file of a ledger, without SQLAlchemy, which takes 0.3 s to load."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from orchestrator.ledger.locks import require_locks, require_rollback_journal

SCHEMA = "0018"
"""Number of the schema. It follows those of the schemas before it, which this version does not read."""

_SHORT_WAIT_S = 1.0


def read_only(file: Path, timeout_s: float) -> sqlite3.Connection:
    """Open the file, which must exist, so that nothing can write to it. Wait so long for a writer."""
    return sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro", uri=True, timeout=timeout_s)


JOB_COUNTS = """
    WITH asked_for AS (
        SELECT DISTINCT runs.experiment, runs.scale, runs.cluster, run_jobs.job_id
        FROM run_jobs JOIN runs ON runs.id = run_jobs.run_id
    ), newest AS (
        SELECT job_id, max(number) AS number, max(CASE WHEN verdict = 'verified' THEN 1 ELSE 0 END) AS is_verified,
            max(CASE WHEN verdict = 'partial' THEN 1 ELSE 0 END) AS is_partial
        FROM attempts GROUP BY job_id
    )
    SELECT asked_for.experiment, asked_for.scale, asked_for.cluster, jobs.program,
        CASE WHEN is_verified = 1 THEN 'verified' WHEN is_partial = 1 THEN 'partial' ELSE attempts.verdict END,
        attempts.failure, attempts.phase, count(*)
    FROM asked_for
        JOIN jobs ON jobs.id = asked_for.job_id
        JOIN newest ON newest.job_id = jobs.id
        JOIN attempts ON attempts.job_id = jobs.id AND attempts.number = newest.number
    GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
"""


class JobCount(NamedTuple):
    """Number of jobs of an experiment with the same program, result, and phase of the latest attempt.

    `verdict` is that of the result, `failure` the failure class of the latest attempt.
    """

    experiment: str
    scale: str
    cluster: str
    program: str
    verdict: str | None
    failure: str | None
    phase: str
    jobs: int = 1


def job_counts_in_file(file: Path) -> list[JobCount] | None:
    """Return the counts of all experiments; None if the file is not a whole ledger of this version, or is locked.

    Then `open_ledger` waits, or raises the error. ReproError as by `open_ledger` for a file system
    without locks.
    """
    require_locks(file, new=False)
    try:
        with closing(read_only(file, _SHORT_WAIT_S)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            require_rollback_journal(file, mode)
            if connection.execute("SELECT version_num FROM alembic_version").fetchall() != [(SCHEMA,)]:
                return None
            return [JobCount(*row) for row in connection.execute(JOB_COUNTS)]
    except (sqlite3.Error, UnicodeDecodeError):
        return None
