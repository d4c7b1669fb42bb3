"""Creation of the ledger's schema by Alembic."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory


def create_schema(connection: sa.Connection) -> None:
    """Create the tables and views of an empty database, in the transaction that the caller has opened.

    If the process is killed, the database stays empty.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    with EnvironmentContext(config, scripts, fn=lambda done, _context: scripts._upgrade_revs("head", done)) as alembic:
        alembic.configure(connection=connection, transactional_ddl=False)  # the caller's transaction contains it all
        alembic.run_migrations()
