"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create all tables."""
    _sandboxes()
    _sandbox_labels()
    _nodes()
    _tokens()
    _join_tokens()
    _ceilings()
    _prepared()
    _create_paces()
    _usage()
    _node_secret()


def _sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("operation_id", sa.String(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_hash", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("active_at", TIME, nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("node_id", sa.String(), nullable=True),
        sa.Column("runtime", sa.String(), nullable=True),
        sa.Column("isolation", sa.String(), nullable=True),
        sa.Column("image_digest", sa.String(), nullable=True),
        sa.Column("granted_gpus", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("held_cpus", sa.Float(), nullable=False),
        sa.Column("held_memory_mb", sa.Integer(), nullable=False),
        sa.Column("held_disk_mb", sa.Integer(), nullable=False),
        sa.Column("held_gpus", sa.Integer(), nullable=False),
        sa.Column("held_slots", sa.Integer(), nullable=False),
        sa.Column("batch", sa.String(), nullable=True),
        sa.Column("want", sa.Text(), nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_sandboxes_node", "sandboxes", ["node_id"], unique=False)
    op.create_index("ix_sandboxes_page", "sandboxes", ["created_at", "id"], unique=False)
    op.create_index("ix_sandboxes_tenant", "sandboxes", ["tenant", "created_at", "id"], unique=False)
    op.create_index("ix_sandboxes_state", "sandboxes", ["state", "want", "created_at", "id"], unique=False)


def _sandbox_labels() -> None:
    op.create_table(
        "sandbox_labels",
        sa.Column("sandbox_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("sandbox_id", "key"),
    )
    op.create_index("ix_sandbox_labels_pair", "sandbox_labels", ["key", "value"], unique=False)


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("instance", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("node_url", sa.String(), nullable=False),
        sa.Column("agent_version", sa.String(), nullable=False),
        sa.Column("total", sa.Text(), nullable=False),
        sa.Column("runtimes", sa.Text(), nullable=False),
        sa.Column("pressure", sa.Text(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("agent_draining", sa.Boolean(), nullable=False),
        sa.Column("registered_at", TIME, nullable=False),
        sa.Column("heartbeat_at", TIME, nullable=True),
        sa.Column("beats", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.String(), nullable=True),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("operation_id", sa.String(), nullable=True),
        sa.Column("stages", sa.Text(), nullable=True),
        sa.Column("role", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_nodes_instance", "nodes", ["instance"], unique=False)


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_index("ix_tokens_node_id", "tokens", ["node_id"], unique=False)


def _join_tokens() -> None:
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("instance", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("used_at", TIME, nullable=True),
        sa.Column("node_id", sa.String(), nullable=True),
        sa.Column("operation_id", sa.String(), nullable=True),
        sa.Column("role", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )


def _ceilings() -> None:
    op.create_table(
        "ceilings",
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("ceiling", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pool"),
    )


def _prepared() -> None:
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
        sa.Column("batch", sa.String(), nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _node_secret() -> None:
    op.create_table(
        "node_secret",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("salt", sa.String(), nullable=False),
        sa.Column("scrypt", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_paces() -> None:
    op.create_table(
        "create_paces",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("due", TIME, nullable=False),
        sa.PrimaryKeyConstraint("tenant"),
    )


def _usage() -> None:
    op.create_table(
        "meters",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("read_at", TIME, nullable=False),
        *_amounts(),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_meters_read", "meters", ["read_at"], unique=False)
    op.create_table(
        "usage",
        sa.Column("sandbox_id", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("hour", TIME, nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        *_amounts(),
        sa.PrimaryKeyConstraint("sandbox_id", "generation", "hour"),
    )
    op.create_index("ix_usage_hour", "usage", ["hour"], unique=False)
    op.create_index("ix_usage_tenant", "usage", ["tenant", "hour"], unique=False)


def _amounts() -> list[sa.Column[float]]:
    names = ("cpu_seconds", "memory_mb_seconds", "paused_memory_mb_seconds", "disk_mb_seconds", "egress_bytes")
    return [sa.Column(name, sa.Float(), nullable=False) for name in names]
