"""Nodes that no job of a cluster may use, with reason, end and user."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "denied_nodes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("until", sa.DateTime()),
        sa.Column("denied_at", sa.DateTime(), nullable=False),
        sa.Column("denied_by", sa.String(), nullable=False),
        sa.Column("allowed_at", sa.DateTime()),
        sa.Column("allowed_by", sa.String()),
        sa.PrimaryKeyConstraint("id", name="pk_denied_nodes"),
    )
    op.create_index("ix_denied_nodes_cluster", "denied_nodes", ["cluster"])
