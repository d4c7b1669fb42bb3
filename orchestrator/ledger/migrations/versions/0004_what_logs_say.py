"""What decided a verdict, more of what an interval line says, and how far each file was read."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns and the table of readings."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("deciding_line", sa.String()))
        attempts.add_column(sa.Column("deciding_rank", sa.Integer()))
    with op.batch_alter_table("iterations") as iterations:
        for name in ("loss_scale", "reported_tflops_per_gpu", "reported_tokens_per_s_per_gpu", "power_w"):
            iterations.add_column(sa.Column(name, sa.Double()))
        for name in ("skipped", "nan"):
            iterations.add_column(sa.Column(name, sa.Integer()))
        iterations.add_column(sa.Column("is_finite", sa.Boolean(), nullable=False, server_default=sa.true()))
        iterations.alter_column("elapsed_ms", existing_type=sa.Double(), nullable=True)
    op.create_table(
        "readings",
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("inode", sa.String(), nullable=False),
        sa.Column("bytes_read", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_readings_attempt_id_attempts"),
        sa.PrimaryKeyConstraint("attempt_id", "name", name="pk_readings"),
    )
