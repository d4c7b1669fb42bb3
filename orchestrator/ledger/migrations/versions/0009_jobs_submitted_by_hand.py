"""The origin of an attempt that `repro` did not submit."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("origin", sa.String()))
