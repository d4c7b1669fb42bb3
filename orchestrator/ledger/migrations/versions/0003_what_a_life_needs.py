"""Who sends an attempt and how, who saw it last, why it failed; repeats of a job; when a scheduler was asked last."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns and the table of polls."""
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("profile_file", sa.String()))
        runs.add_column(sa.Column("wishes", sa.JSON()))
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("repeat", sa.Integer(), nullable=False, server_default="1"))
    with op.batch_alter_table("attempts") as attempts:
        for name in ("user", "file", "seen_via", "failure"):
            attempts.add_column(sa.Column(name, sa.String()))
        attempts.add_column(sa.Column("pid", sa.Integer()))
        attempts.add_column(sa.Column("options", sa.JSON()))
        attempts.add_column(sa.Column("is_requeued", sa.Boolean()))
        for name in ("starts_at", "ends_at", "unseen_since"):
            attempts.add_column(sa.Column(name, sa.DateTime()))
    op.create_table(
        "looks",
        sa.Column("scheduler", sa.String(), nullable=False),
        sa.Column("asked_at", sa.DateTime(), nullable=False),
        sa.Column("complaints", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("scheduler", name="pk_looks"),
    )
