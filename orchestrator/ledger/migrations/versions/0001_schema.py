"""The schema: tables with their indexes and checks, and the views, as the models declare them.

Its id follows those of the schemas before it, which this version does not read.
"""

from alembic import op

from orchestrator.ledger.tables import Table
from orchestrator.ledger.views import create_views

revision = "0016"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and the views."""
    Table.metadata.create_all(op.get_bind(), checkfirst=False)
    create_views(op.get_bind())
