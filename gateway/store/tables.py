"""Rows of the gateway's database. SQLModel is confined to this package; nothing outside `gateway.store` sees a row."""

from datetime import datetime

from sqlalchemy import Index, Text
from sqlmodel import Field, SQLModel

from gateway.wire.tenants import DEFAULT_TENANT


class SandboxRow(SQLModel, table=True):
    """One qualified sandbox id; a new generation replaces it in place."""

    __tablename__ = "sandboxes"
    __table_args__ = (
        Index("ix_sandboxes_page", "created_at", "id"),
        Index("ix_sandboxes_tenant", "tenant", "created_at", "id"),
        Index("ix_sandboxes_state", "state", "want", "created_at", "id"),
        Index("ix_sandboxes_node", "node_id"),
    )

    id: str = Field(primary_key=True)
    tenant: str = DEFAULT_TENANT
    generation: int
    version: int
    operation_id: str
    spec: str = Field(sa_type=Text)
    spec_hash: str
    state: str
    created_at: datetime
    updated_at: datetime
    active_at: datetime
    uses: int = 0
    expires_at: datetime | None = None
    want: str = Field(sa_type=Text)
    """The same text for all that need the same of a node."""
    node_id: str | None = None
    runtime: str | None = None
    isolation: str | None = None
    image_digest: str | None = None
    granted_gpus: int = 0
    batch: str | None = None
    reason: str | None = None
    detail: str | None = Field(default=None, sa_type=Text)
    error: str | None = None
    exit_code: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    # What it takes of its node now, or waits for without one: one query sums up a node, another a tenant.
    held_cpus: float = 0.0
    held_memory_mb: int = 0
    held_disk_mb: int = 0
    held_gpus: int = 0
    held_slots: int = 0


class LabelRow(SQLModel, table=True):
    """One label of one sandbox, for filters."""

    __tablename__ = "sandbox_labels"
    __table_args__ = (Index("ix_sandbox_labels_pair", "key", "value"),)

    sandbox_id: str = Field(primary_key=True, foreign_key="sandboxes.id", ondelete="CASCADE")
    key: str = Field(primary_key=True)
    value: str


class NodeRow(SQLModel, table=True):
    """One node, gone ones included."""

    __tablename__ = "nodes"
    __table_args__ = (Index("ix_nodes_instance", "instance"),)

    id: str = Field(primary_key=True)
    version: int
    instance: str
    pool: str
    state: str
    node_url: str
    agent_version: str
    total: str = Field(sa_type=Text)
    runtimes: str = Field(sa_type=Text)
    pressure: str = Field(sa_type=Text)
    draining: bool = False
    agent_draining: bool = False
    registered_at: datetime
    heartbeat_at: datetime | None = None
    beats: int = 0
    boot_id: str | None = None
    sequence: int = 0
    operation_id: str | None = None
    stages: str | None = Field(default=None, sa_type=Text)
    role: str = "sandbox"


class TokenRow(SQLModel, table=True):
    """A token; of its secret only the SHA-256."""

    __tablename__ = "tokens"

    id: str = Field(primary_key=True)
    sha256: str = Field(unique=True)
    name: str
    scope: str
    node_id: str | None = Field(default=None, index=True)
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    tenant: str = DEFAULT_TENANT


class JoinTokenRow(SQLModel, table=True):
    """A right to register once; of its secret only the SHA-256."""

    __tablename__ = "join_tokens"

    id: str = Field(primary_key=True)
    sha256: str = Field(unique=True)
    instance: str
    pool: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    node_id: str | None = None
    operation_id: str | None = None
    role: str = "sandbox"


class PreparedRow(SQLModel, table=True):
    """Units of capacity that were asked for before anything needs them."""

    __tablename__ = "prepared"

    id: str = Field(primary_key=True)
    tenant: str = DEFAULT_TENANT
    kind: str
    shape: str = Field(sa_type=Text)
    runtime: str | None = None
    isolation: str
    image: str | None = None
    batch: str
    """Names these units; a sandbox that has one of them carries it."""
    count: int
    """Units that nobody has claimed yet."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime


class CreatePaceRow(SQLModel, table=True):
    """When the next create of a tenant is due, where its quota bounds creates per second."""

    __tablename__ = "create_paces"

    tenant: str = Field(primary_key=True)
    due: datetime


class MeterRow(SQLModel, table=True):
    """The last reading of a node's meter of one incarnation of a sandbox."""

    __tablename__ = "meters"
    __table_args__ = (Index("ix_meters_read", "read_at"),)

    id: str = Field(primary_key=True)
    read_at: datetime
    cpu_seconds: float
    memory_mb_seconds: float
    paused_memory_mb_seconds: float
    disk_mb_seconds: float
    egress_bytes: float


class UsageRow(SQLModel, table=True):
    """What one incarnation of a sandbox used within one hour."""

    __tablename__ = "usage"
    __table_args__ = (Index("ix_usage_hour", "hour"), Index("ix_usage_tenant", "tenant", "hour"))

    sandbox_id: str = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    hour: datetime = Field(primary_key=True)
    tenant: str
    cpu_seconds: float
    memory_mb_seconds: float
    paused_memory_mb_seconds: float
    disk_mb_seconds: float
    egress_bytes: float


class SecretRow(SQLModel, table=True):
    """By what gateways tell whether they have the same secret, which cannot be told from it."""

    __tablename__ = "node_secret"

    name: str = Field(primary_key=True)
    salt: str
    scrypt: str


class CeilingRow(SQLModel, table=True):
    """The largest node that one pool can hold, as the autoscaler reported it."""

    __tablename__ = "ceilings"

    pool: str = Field(primary_key=True)
    ceiling: str = Field(sa_type=Text)
