"""The time at which an attempt was forgotten, and the user who did it. The views leave forgotten attempts out."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("forgotten_at", sa.DateTime()))
        attempts.add_column(sa.Column("forgotten_by", sa.String()))
