"""Settings of the gateway, read from a TOML file and the environment; nothing is read at import."""

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from gateway.wire import limits
from gateway.wire.settings import DaemonSettings


class GatewaySettings(DaemonSettings):
    """One frozen value; every field may be set in the file or as ``SANDBOXES_GATEWAY_<FIELD>``.  Unknown keys fail."""

    env_prefix = "SANDBOXES_GATEWAY_"
    owner = "gateway"

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8090, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    state_dir: Path = Path("/var/lib/sandbox-fleet/gateway")
    """Directory of the database and the node secret; only its owner may read it."""
    database_url: str | None = None
    """SQLAlchemy URL; ``None`` is a SQLite file in ``state_dir``."""
    database_direct_url: str | None = None
    """SQLAlchemy URL of the same database on the server itself, where ``database_url`` leads to a pooler such as
    PgBouncer: a gateway hears there of the others' changes."""
    bundle_dir: Path | None = None
    """Directory of what new nodes install, built by ``sandboxes gateway bundle``; ``None`` is ``state_dir``/bundle."""
    policy_file: Path | None = None
    """TOML file with what clients may ask for, and the quotas, per tenant; ``None`` takes the safe defaults."""
    create_wait: float = Field(default=limits.CREATE_WAIT, gt=0)
    """Seconds that a create waits before it answers with a retryable error and continues in the background."""
    delete_wait: float = Field(default=10.0, gt=0)
    """Seconds that a delete waits for the node before it answers that the node has yet to confirm."""
    pending_lease: float = Field(default=limits.PENDING_LEASE, gt=0)
    """Seconds after which a waiting create that nobody retries fails."""
    max_pending: int = Field(default=10_000, ge=1)
    """Most sandboxes that may wait for room at once; further creates are refused with ``no_room``."""
    heartbeat_interval: float = Field(default=limits.HEARTBEAT_INTERVAL, gt=0)
    """Seconds between two heartbeats of a node."""
    unreachable_after: float = Field(default=limits.UNREACHABLE_AFTER, gt=0)
    """Seconds without heartbeat after which nothing new is placed on a node."""
    lost_after: float = Field(default=limits.LOST_AFTER, gt=0)
    """Seconds without heartbeat after which a node's sandboxes are lost."""
    tombstone_seconds: float = Field(default=24 * 3600.0, gt=0)
    """Seconds for which rows of deleted sandboxes (and with them their generations) and of gone nodes are kept."""
    ended_seconds: float = Field(default=7 * 24 * 3600.0, gt=0)
    """Seconds after its end for which an ``exited``, ``failed`` or ``lost`` sandbox without a ttl is kept; then it is
    deleted, with its workspace.  What runs or may still run is never deleted by it."""
    reserve_mb: int = Field(default=16, ge=1)
    """MiB that are set aside in a file beside a SQLite database, so that deletes, pauses and revocations work on a full
    disk too.  While they are not whole, nothing new is made."""
    audit_days: int = Field(default=90, ge=1)
    """Days for which the audit log is kept, in ``state_dir``/audit."""
    audit_max_mb: int = Field(default=2048, ge=8)
    """Most MiB of the audit log; beyond that its oldest file is deleted, with a warning, even if it is younger."""

    usage_days: int = Field(default=400, ge=1, le=3660)
    """Days for which it is kept what tenants used, hour by hour."""

    @property
    def bundle_path(self) -> Path:
        """Directory of the bundle."""
        return self.bundle_dir or self.state_dir / "bundle"

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database."""
        return self.database_url or f"sqlite:///{self.state_dir / 'gateway.db'}"

    @field_validator("database_url", "database_direct_url")
    @classmethod
    def _is_database_url(cls, url: str | None) -> str | None:
        if url:
            # Only where one is given: most commands that read settings need no database.
            from sqlalchemy import make_url
            from sqlalchemy.exc import ArgumentError

            try:
                known = make_url(url).get_backend_name() in {"sqlite", "postgresql"}
            except (ArgumentError, ValueError):
                known = False
            if not known:
                # Without the value, which may hold a password.
                raise ValueError("must be sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME")
        return url

    @model_validator(mode="after")
    def _late_before_lost(self) -> Self:
        if not self.heartbeat_interval < self.unreachable_after < self.lost_after:
            raise ValueError("heartbeat_interval < unreachable_after < lost_after must hold")
        return self
