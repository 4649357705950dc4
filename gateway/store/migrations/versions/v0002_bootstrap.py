"""Join tokens are bound to an operation, nodes tell how they came up, capacity is prepared."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Adds columns that may be empty, and one table."""
    op.add_column("join_tokens", sa.Column("operation_id", sa.String(), nullable=True))
    op.add_column("nodes", sa.Column("operation_id", sa.String(), nullable=True))
    op.add_column("nodes", sa.Column("stages", sa.Text(), nullable=True))
    op.create_table(
        "prepared",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("runtime", sa.String(), nullable=True),
        sa.Column("isolation", sa.String(), nullable=False),
        sa.Column("image", sa.String(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
