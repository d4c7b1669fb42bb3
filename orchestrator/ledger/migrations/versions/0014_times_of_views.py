"""Times of the views as `2026-01-02T03:04:05Z`. Each upgrade creates the views again, so no table changes."""

revision = "0014"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change no table."""
