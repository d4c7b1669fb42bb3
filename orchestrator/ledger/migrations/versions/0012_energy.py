"""The reason why the GPU samples of an attempt gave no energy."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("no_energy", sa.String()))
