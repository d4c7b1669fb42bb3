"""The first tables: runs, jobs, attempts, metrics, iterations, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("image", sa.String(), nullable=True),
        sa.Column("configuration", sa.JSON(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("iterations", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("experiment", sa.String(), nullable=False),
        sa.Column("scale", sa.String(), nullable=False),
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("git_commit", sa.String(), nullable=True),
        sa.Column("git_dirty", sa.Boolean(), nullable=True),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_experiment", "runs", ["experiment"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("scheduler", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("array_index", sa.Integer(), nullable=True),
        sa.Column("scheduler_id", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("nodes", sa.String(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("script", sa.String(), nullable=False),
        sa.Column("script_sha256", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("submitted_at", sa.DateTime(), nullable=True),
        sa.Column("started_at", sa.DateTime(), nullable=True),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.Column("refreshed_at", sa.DateTime(), nullable=True),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.String(), nullable=True),
        sa.Column("verdict_reason", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_attempts_job_id_jobs"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_attempts_run_id_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("job_id", "number", name="uq_attempts_job_id_number"),
    )
    op.create_index("ix_attempts_job_id", "attempts", ["job_id"], unique=False)
    op.create_index("ix_attempts_phase", "attempts", ["phase"], unique=False)
    op.create_index("ix_attempts_run_id", "attempts", ["run_id"], unique=False)
    op.create_index("ix_attempts_scheduler_id", "attempts", ["scheduler_id"], unique=False)
    op.create_index("ix_attempts_token", "attempts", ["token"], unique=False)
    op.create_table(
        "run_jobs",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("case_name", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_run_jobs_job_id_jobs"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_jobs_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "job_id", name="pk_run_jobs"),
    )
    op.create_index("ix_run_jobs_job_id", "run_jobs", ["job_id"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("attempt_id", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_events_attempt_id_attempts"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_events_run_id_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_attempt_id", "events", ["attempt_id"], unique=False)
    op.create_index("ix_events_run_id", "events", ["run_id"], unique=False)
    op.create_table(
        "iterations",
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("elapsed_ms", sa.Double(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("grad_norm", sa.Double(), nullable=True),
        sa.Column("used", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_iterations_attempt_id_attempts"),
        sa.PrimaryKeyConstraint("attempt_id", "iteration", name="pk_iterations"),
    )
    op.create_table(
        "metrics",
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_metrics_attempt_id_attempts"),
        sa.PrimaryKeyConstraint("attempt_id", "name", name="pk_metrics"),
    )
