"""Read-only connections to the SQLite file of a ledger, without SQLAlchemy, which takes 0.3 s to load."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from orchestrator.ledger.locks import require_locks, require_rollback_journal

SCHEMA = "0016"
"""Revision of the schema. Alembic, which creates it, is loaded only for a new ledger."""

_SHORT_WAIT_S = 1.0


def read_only(file: Path, timeout_s: float) -> sqlite3.Connection:
    """Open the file, which must exist, so that nothing can write to it. Wait so long for a writer."""
    return sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro", uri=True, timeout=timeout_s)


def rows_in_file(file: Path, statement: str) -> list[Sequence[object]] | None:
    """Return the rows of a SELECT; None if the file is not a whole ledger of this version, or is locked.

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
            return connection.execute(statement).fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        return None
