"""Alembic runs this inside the transaction that `ledger.database` opened."""

from alembic import context

from orchestrator.ledger.tables import Table

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Table.metadata,
    render_as_batch=True,  # SQLite cannot alter a column in place
    transactional_ddl=False,  # the caller's transaction holds everything
)
context.run_migrations()
