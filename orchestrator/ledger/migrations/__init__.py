"""Migrations of the ledger by alembic."""
