"""Join tokens and nodes say what their machine is for."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the role; whatever was there before holds sandboxes."""
    for table in ("join_tokens", "nodes"):
        op.add_column(table, sa.Column("role", sa.String(), nullable=False, server_default="sandbox"))
