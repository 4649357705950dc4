"""A provider over a cloud that is one SQLite file: a row is a VM, and it runs one second after it was ordered."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import ClassVar, Self

from providers import base
from providers.base import Applied, ErrorKind, Scope

BOOT = timedelta(seconds=1)
OFFERS = (base.Offer("small", "here", base.Resources(2, 4096, 20_000), Decimal("0.01"), available=True),)
TABLE = """CREATE TABLE IF NOT EXISTS vm (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, deployment TEXT,
    operation TEXT, type TEXT, location TEXT, labels TEXT, created_at TEXT, user_data TEXT)"""
INSERT = "INSERT OR IGNORE INTO vm VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)"


class LedgerProvider(base.ComputeProvider):
    kind: ClassVar[str] = "ledger"
    caps: ClassVar[base.Caps] = base.Caps(
        unique_names=True,
        list_is_atomic=True,
        deleted_vanish=True,
        billing=base.Billing.PER_SECOND,
        max_user_data=None,
        calls_per_hour=None,
        has_gpu=False,
    )

    def __init__(self, path: str, deployment: str) -> None:
        self._path, self._deployment = path, deployment

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        path = settings.get("path")
        if settings.keys() != {"path"} or not isinstance(path, str):
            raise base.SettingsError(f"ledger: needs the key path, a string, and no other; given: {sorted(settings)}")
        return cls(path, deployment)

    def offers(self) -> list[base.Offer]:
        return [*OFFERS]

    def list(self) -> base.Inventory:
        return base.Inventory(tuple(self._instances()), taken_at=datetime.now(UTC))

    def get(self, ref: base.Ref) -> base.Instance | None:
        return next((vm for vm in self._instances() if ref.names(vm)), None)

    def create(self, want: base.Create) -> base.Instance:
        if all((offer.type, offer.location) != (want.type, want.location) for offer in OFFERS):
            raise _error(f"no offer {want.type} at {want.location}", ErrorKind.CONFIG, Scope.POOL)
        labels, now = json.dumps(dict(want.labels)), datetime.now(UTC).isoformat()
        row = (want.name, want.deployment, want.operation_id, want.type, want.location, labels, now, want.user_data)
        with self._ledger(Applied.MAYBE) as db:
            made = db.execute(INSERT, row).rowcount
            there = db.execute("SELECT * FROM vm WHERE name = ?", (want.name,)).fetchone()
        if (there["deployment"], there["operation"]) != (want.deployment, want.operation_id):
            raise _error(f"the name {want.name} is taken", ErrorKind.EXISTS, Scope.INSTANCE)
        return _instance(there, adopted=not made)

    def delete(self, ref: base.Ref) -> base.Deleted:
        if (found := self.get(ref)) is not None:
            with self._ledger(Applied.MAYBE) as db:
                db.execute("DELETE FROM vm WHERE id = ?", (found.id,))
        return base.Deleted.GONE

    def connect(self, instance: base.Instance) -> base.Access | None:
        return None

    def _instances(self) -> Iterator[base.Instance]:
        with self._ledger(Applied.NO) as db:
            rows = db.execute("SELECT * FROM vm WHERE deployment = ? ORDER BY id", (self._deployment,)).fetchall()
        return map(_instance, rows)

    @contextmanager
    def _ledger(self, applied: Applied) -> Iterator[sqlite3.Connection]:
        """One transaction; ``applied`` is what is known of its effect when it fails."""
        try:
            with closing(sqlite3.connect(self._path, timeout=5)) as db, db:
                db.row_factory = sqlite3.Row
                db.execute(TABLE)
                yield db
        except sqlite3.OperationalError as error:
            raise _error(f"{self._path}: {error}", ErrorKind.TRANSIENT, Scope.PROVIDER, applied) from error


def _error(message: str, kind: ErrorKind, scope: Scope, applied: Applied = Applied.NO) -> base.ProviderError:
    return base.ProviderError(f"ledger: {message}", kind=kind, applied=applied, scope=scope)


def _instance(row: sqlite3.Row, adopted: bool = False) -> base.Instance:
    created_at = datetime.fromisoformat(row["created_at"])
    phase = base.Phase.RUNNING if datetime.now(UTC) - created_at >= BOOT else base.Phase.BOOTING
    id, name, type, location = str(row["id"]), row["name"], row["type"], row["location"]
    return base.Instance(id, name, json.loads(row["labels"]), phase, type, location, created_at, adopted=adopted)
