"""Files of experiments that were submitted by a path."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "experiment_files",
        sa.Column("experiment", sa.String(), nullable=False),
        sa.Column("file", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("experiment", name="pk_experiment_files"),
    )
