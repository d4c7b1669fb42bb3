"""Partial attempts in the view of results. Each upgrade creates the views again, so no table changes."""

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change no table."""
