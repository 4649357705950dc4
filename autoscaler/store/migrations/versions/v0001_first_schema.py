"""The first schema: intents, events, back-offs, money spent, what nodes were seen to have, and who may act."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "intent",
        sa.Column("operation_id", sa.String(), primary_key=True),
        sa.Column("pool", sa.String(), nullable=False, index=True),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False, unique=True),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False, index=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try_at", sa.Float(), nullable=False),
        sa.Column("instance_id", sa.String(), nullable=True),
        sa.Column("node_id", sa.String(), nullable=True),
        sa.Column("drain_mark", sa.Float(), nullable=True),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("price", sa.String(), nullable=True),
        sa.Column("spec", sa.String(), nullable=False),
        sa.Column("running_at", sa.Float(), nullable=True),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("extended_at", sa.Float(), nullable=True),
    )
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("at", sa.Float(), nullable=False, index=True),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
    )
    op.create_table(
        "backoff",
        sa.Column("kind", sa.String(), primary_key=True),
        sa.Column("owner", sa.String(), primary_key=True),
        sa.Column("item", sa.String(), primary_key=True),
        sa.Column("until", sa.Float(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.Float(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
    )
    op.create_table(
        "learned",
        sa.Column("pool", sa.String(), primary_key=True),
        sa.Column("type", sa.String(), primary_key=True),
        sa.Column("shape", sa.String(), nullable=False),
        sa.Column("spec", sa.String(), nullable=False),
    )
    op.create_table(
        "spend",
        sa.Column("pool", sa.String(), primary_key=True),
        sa.Column("month", sa.String(), primary_key=True),
        sa.Column("euros", sa.String(), nullable=False),
    )
    op.create_table(
        "lease",
        sa.Column("deployment", sa.String(), primary_key=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
