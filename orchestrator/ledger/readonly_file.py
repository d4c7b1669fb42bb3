"""Read-only connections to the SQLite file of a ledger, without SQLAlchemy, which takes 0.3 s to load."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from orchestrator.ledger.locks import require_locks, require_rollback_journal

SCHEMA = "0016"
"""Number of the schema. It follows those of the schemas before it, which this version does not read."""

_SHORT_WAIT_S = 1.0


def read_only(file: Path, timeout_s: float) -> sqlite3.Connection:
    """Open the file, which must exist, so that nothing can write to it. Wait so long for a writer."""
    return sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro", uri=True, timeout=timeout_s)


JOB_COUNTS = """
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
