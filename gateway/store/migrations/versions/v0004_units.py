"""A sandbox says of which prepared units it has one."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Names the units; who claimed one before is not known, and keeps it."""
    op.add_column("sandboxes", sa.Column("batch", sa.String(), nullable=True))
    op.add_column("prepared", sa.Column("batch", sa.String(), nullable=False, server_default=""))
    op.execute("UPDATE prepared SET batch = id")
