"""Rows.  They validate nothing and leave this package only as the values of `autoscaler.core.world`."""

from datetime import datetime

from sqlalchemy import DateTime, MetaData
from sqlmodel import Field, SQLModel


class Row(SQLModel):
    """Base of all rows of this database, with its own metadata, so that no other daemon's tables get mixed in."""

    metadata = MetaData()


class IntentRow(Row, table=True):
    """See `autoscaler.core.world.Intent`."""

    __tablename__ = "intent"

    operation_id: str = Field(primary_key=True)
    pool: str = Field(index=True)
    provider: str
    name: str = Field(unique=True)
    type: str
    location: str
    state: str = Field(index=True)
    created_at: float
    changed_at: float
    deadline: float
    attempts: int
    next_try_at: float
    instance_id: str | None
    node_id: str | None
    drain_mark: float | None
    detail: str
    price: str | None
    """A decimal; databases round theirs."""
    spec: str
    running_at: float | None
    cause: str
    extended_at: float | None


class EventRow(Row, table=True):
    """One thing that happened, written in the transaction of the change that it records."""

    __tablename__ = "event"

    id: int | None = Field(default=None, primary_key=True)
    at: float = Field(index=True)
    subject: str
    kind: str
    detail: str


class BackOffRow(Row, table=True):
    """See `autoscaler.core.world.BackOff`."""

    __tablename__ = "backoff"

    kind: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    item: str = Field(primary_key=True)
    until: float
    failures: int
    failed_at: float
    reason: str


class LearnedRow(Row, table=True):
    """What a node of this pool and type really had."""

    __tablename__ = "learned"

    pool: str = Field(primary_key=True)
    type: str = Field(primary_key=True)
    spec: str
    shape: str
    """A `gateway.wire.resources.Shape` as JSON."""


class LeaseRow(Row, table=True):
    """Who may act for a deployment, see `autoscaler.lock.Lease`; of use in PostgreSQL only."""

    __tablename__ = "lease"

    deployment: str = Field(primary_key=True)
    owner: str
    number: int
    """Grows with each change of owner."""
    expires_at: datetime = Field(sa_type=DateTime(timezone=True))
    """By the clock of the database."""


class SpendRow(Row, table=True):
    """Euro that instances which are gone have cost, by pool and calendar month."""

    __tablename__ = "spend"

    pool: str = Field(primary_key=True)
    month: str = Field(primary_key=True)
    """Such as ``2026-11``; UTC."""
    euros: str
