"""Two cases of a run may be one job: a run's jobs are told apart by their position."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make a job's position part of the key of `run_jobs`."""
    with op.batch_alter_table("run_jobs") as run_jobs:
        run_jobs.drop_constraint("pk_run_jobs", type_="primary")
        run_jobs.create_primary_key("pk_run_jobs", ["run_id", "position"])
