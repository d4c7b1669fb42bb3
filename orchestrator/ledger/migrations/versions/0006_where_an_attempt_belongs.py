"""The Slurm cluster and the machine that an attempt belongs to, and the digest of a job's image."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("slurm_cluster", sa.String()))
        attempts.add_column(sa.Column("machine", sa.String()))
        attempts.add_column(sa.Column("pid_start_ticks", sa.BigInteger()))
        attempts.add_column(sa.Column("unsettled_since", sa.JSON()))
        attempts.add_column(sa.Column("unseen_log_bytes", sa.BigInteger()))
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("image_digest", sa.String()))
