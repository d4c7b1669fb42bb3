"""The state of an attempt that no scheduler was asked to take is QUEUED; a run's options are in `run_options`.

Attempts from before migration 0003 have no failure class. Those that ran out of GPU memory get it from the reason of
their verdict, because a source may report that a case fails so.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rename the stored state and the column, and add the missing failure classes."""
    with op.batch_alter_table("runs") as runs:
        runs.alter_column("wishes", new_column_name="run_options", existing_type=sa.JSON())
    op.execute("UPDATE attempts SET state = 'QUEUED' WHERE state = 'IN_TURN'")
    op.execute("UPDATE events SET kind = 'queued' WHERE kind = 'in turn'")
    op.execute("UPDATE events SET detail = replace(detail, 'IN_TURN', 'QUEUED') WHERE kind = 'state'")
    op.execute(
        "UPDATE attempts SET failure = 'gpu-oom' WHERE verdict = 'failed' AND failure IS NULL"
        " AND substr(verdict_reason, 1, 17) = 'out of GPU memory'"
    )
