"""What instances cost, what they were made from, when they ran, and why they were ordered or closed."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns, with what is unknown of older rows left open."""
    op.add_column("intent", sa.Column("price", sa.String(), nullable=True))
    op.add_column("intent", sa.Column("spec", sa.String(), nullable=False, server_default=""))
    op.add_column("intent", sa.Column("running_at", sa.Float(), nullable=True))
    op.add_column("intent", sa.Column("cause", sa.String(), nullable=False, server_default=""))
    op.create_table(
        "spend",
        sa.Column("pool", sa.String(), primary_key=True),
        sa.Column("month", sa.String(), primary_key=True),
        sa.Column("euros", sa.String(), nullable=False),
    )
