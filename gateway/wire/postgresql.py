"""How the daemons connect to PostgreSQL: with a bound on every wait, directly or past a pooler such as PgBouncer.

A pooler gives each transaction to whatever connection is free. What belongs to a session is lost there without a word:
settings, prepared statements, LISTEN, advisory locks of a session. So nothing here relies on them once a pooler was
found, and it is found on each connection by the process that serves it: a pooler tells one of its own invention.

SQLAlchemy and the driver are the callers'; this module knows what they are to be told.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

KEEPALIVE: Final = 5
"""Seconds of silence after which the other side is asked whether it is there; it may leave that unanswered thrice."""


@dataclass(frozen=True)
class Patience:
    """How long things may take, in seconds. The server ends what takes longer, also for a client that is frozen."""

    connect: float = 5.0
    """For one attempt to connect to one address."""
    lock: float = 5.0
    """For a lock that another transaction holds."""
    statement: float = 10.0
    """For one statement, waits for locks included."""
    idle: float = 5.0
    """Between two statements of a transaction: whoever holds locks and says no more loses them."""
    call: float = 15.0
    """For a whole transaction as the client sees it, whatever the server does."""

    def settings(self, *, local: bool) -> str:
        """Return the statement that sets the server's part, for a session or, if ``local``, for the transaction."""
        settings = {
            "lock_timeout": self.lock,
            "statement_timeout": self.statement,
            "idle_in_transaction_session_timeout": self.idle,
        }
        values = {name: f"{seconds * 1000:.0f}ms" for name, seconds in settings.items()}
        values |= {
            "tcp_keepalives_idle": str(KEEPALIVE),
            "tcp_keepalives_interval": str(KEEPALIVE),
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": f"{4 * KEEPALIVE}s",
        }
        calls = (f"set_config('{name}', '{value}', {str(local).lower()})" for name, value in values.items())
        return f"SELECT {', '.join(calls)}"


PATIENCE: Final = Patience()
_POOLED: Final = "pooled"
"""Key of what is known of a connection: whether it leads to a pooler."""


def connect_args(patience: Patience = PATIENCE) -> dict[str, int]:
    """Return what libpq is given for each connection; a key of the URL goes before the one here."""
    return {
        "connect_timeout": max(2, round(patience.connect)),  # libpq takes no less
        "keepalives_idle": KEEPALIVE,
        "keepalives_interval": KEEPALIVE,
        "keepalives_count": 3,
        "tcp_user_timeout": 4 * KEEPALIVE * 1000,
    }


class _Info(Protocol):
    @property
    def backend_pid(self) -> int: ...


class _HasInfo(Protocol):
    info: dict[Any, Any]


class DriverConnection(Protocol):
    """The part of ``psycopg.Connection`` that is used here."""

    prepare_threshold: int | None

    @property
    def info(self) -> _Info: ...

    def execute(self, query: Any) -> Any:
        """Run one statement."""

    def commit(self) -> None:
        """End the transaction."""


def listeners(patience: Patience = PATIENCE) -> dict[str, Callable[..., None]]:
    """Return what an SQLAlchemy engine does when it connects and when it begins a transaction, by name of the event."""
    bounds = patience.settings(local=True)

    def connect(connection: DriverConnection, record: _HasInfo) -> None:
        pooled = record.info[_POOLED] = is_pooled(connection)
        if pooled:
            connection.prepare_threshold = None
        else:
            connection.execute(patience.settings(local=False))
            connection.commit()

    def begin(connection: Any) -> None:
        if connection.info[_POOLED]:
            connection.exec_driver_sql(bounds)

    return {"connect": connect, "begin": begin}


def is_pooled(connection: DriverConnection) -> bool:
    """Return whether something between answers in the server's name."""
    (serving,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.commit()
    return bool(serving != connection.info.backend_pid)
