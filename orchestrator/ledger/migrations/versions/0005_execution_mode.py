"""The execution mode of an attempt, and the host wait of each interval line."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("execution", sa.String()))
    with op.batch_alter_table("iterations") as iterations:
        iterations.add_column(sa.Column("host_wait_ms", sa.Double()))
