"""A sandbox says what it needs, so that equal ones can be counted and placed together."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What waits already is of a kind of its own each, which is right and only slower."""
    op.add_column("sandboxes", sa.Column("want", sa.Text(), nullable=False, server_default=""))
    op.execute("UPDATE sandboxes SET want = 'alone/' || id")
    op.drop_index("ix_sandboxes_state", "sandboxes")
    op.create_index("ix_sandboxes_state", "sandboxes", ["state", "want", "created_at", "id"])
