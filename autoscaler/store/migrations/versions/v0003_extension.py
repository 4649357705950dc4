"""When a boot was given more time, and from which spec a node was made that taught its shape."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns.  What was learned without a spec is learned anew."""
    op.add_column("intent", sa.Column("extended_at", sa.Float(), nullable=True))
    op.execute("DELETE FROM learned")
    op.add_column("learned", sa.Column("spec", sa.String(), nullable=False, server_default=""))
