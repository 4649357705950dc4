"""What the database drivers raise, in one place: which refusal a caller gets, and what runs again without one.

`gateway.store.db` is the only module that catches an exception of a driver.
"""

import sqlite3
from enum import Enum
from typing import Final

from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gateway.errors import ApiError
from gateway.wire.errors import ErrorCode

RETRY_AWAY: Final = 2.0
"""Seconds after which a caller may ask again whose database was away."""


IDLE_IN_TRANSACTION: Final = "25P03"
"""SQLSTATE of a transaction in which nothing was said for too long."""


class _Cause(Enum):
    """Why a database refuses."""

    FULL = "full"
    BROKEN = "broken"
    LOCKED = "locked"
    READ_ONLY = "read_only"
    CONFLICT = "conflict"
    AWAY = "away"
    BUG = "bug"


_SQLITE_CAUSES: Final = {
    sqlite3.SQLITE_FULL: _Cause.FULL,
    sqlite3.SQLITE_IOERR: _Cause.BROKEN,
    sqlite3.SQLITE_BUSY: _Cause.LOCKED,
    sqlite3.SQLITE_LOCKED: _Cause.LOCKED,
    sqlite3.SQLITE_READONLY: _Cause.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _Cause.READ_ONLY,
}
"""By primary result code, https://sqlite.org/rescode.html."""
_POSTGRESQL_CAUSES: Final = {
    "25006": _Cause.AWAY,  # read only: a standby, until it is the primary
    IDLE_IN_TRANSACTION: _Cause.AWAY,
    "40001": _Cause.CONFLICT,
    "40P01": _Cause.CONFLICT,
    "53100": _Cause.FULL,
    "55P03": _Cause.LOCKED,
    "58030": _Cause.BROKEN,
}
"""By SQLSTATE, https://www.postgresql.org/docs/current/errcodes-appendix.html."""


def _cause_of(error: SQLAlchemyError) -> _Cause:
    if not isinstance(error, DBAPIError):
        return _Cause.AWAY if isinstance(error, PoolTimeoutError) else _Cause.BUG
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE_CAUSES.get(code & 0xFF, _Cause.BUG)
    cause = _POSTGRESQL_CAUSES.get(getattr(error.orig, "sqlstate", None) or "")
    if cause is not None:
        return cause
    # Whatever the driver calls operational lies outside the statement: connections, shutdowns, limits, timeouts.
    # sqlite3 uses the same class for mistakes in statements, and those came with no code of a cause.
    outside = isinstance(error, OperationalError | InterfaceError) and not isinstance(error.orig, sqlite3.Error)
    return _Cause.AWAY if outside or error.connection_invalidated else _Cause.BUG


def runs_again(error: SQLAlchemyError, *, committing: bool) -> bool:
    """Return whether a transaction that failed was certainly not done, and may succeed at once on fresh rows."""
    if isinstance(error, IntegrityError) or _cause_of(error) is _Cause.CONFLICT:
        return True  # another process was quicker
    if not isinstance(error, DBAPIError):
        return False
    if getattr(error.orig, "sqlstate", None) == IDLE_IN_TRANSACTION:
        return True  # ended by the server long before the commit that learned of it
    return error.connection_invalidated and not committing


def wants_room(error: SQLAlchemyError) -> bool:
    """Return whether it may be a full disk; SQLite calls it a broken one where a side file could not grow."""
    return _cause_of(error) in {_Cause.FULL, _Cause.BROKEN}


def why_unusable(error: DBAPIError) -> str:
    """Return one sentence about a database that cannot be opened."""
    message = str(error.orig).strip() if error.orig is not None else ""
    said = (message or str(error)).splitlines()[0]
    match _cause_of(error):
        case _Cause.FULL:
            return "the disk is full; free some space and start again"
        case _Cause.BROKEN:
            return "reading or writing failed (disk I/O error); the disk is full or broken"
        case _Cause.LOCKED:
            return "another process holds it locked; stop that one and start again"
        case _Cause.READ_ONLY:
            return f"it cannot be opened for writing ({said}); check the path and its owner"
        case _:
            return said


def refusal(error: SQLAlchemyError) -> Exception:
    """Return the refusal for a database that fails in use; the error itself when it is a bug."""
    match _cause_of(error):
        case _Cause.FULL:
            return disk_full("the gateway's database cannot grow: its disk is full; free space there")
        case _Cause.LOCKED:
            return ApiError(
                ErrorCode.BUSY, "the gateway's database is locked by another process; try again", retry_after=1
            )
        case _Cause.CONFLICT:
            return too_busy()
        case _Cause.AWAY:
            return away()
        case _:
            return error


def disk_full(message: str) -> ApiError:
    """Refuse a change for which the gateway's own disk has no room."""
    return ApiError(ErrorCode.DISK_FULL, message, retryable=True, retry_after=5)


def too_busy() -> ApiError:
    """Refuse a change that others overtook again and again."""
    return ApiError(ErrorCode.BUSY, "the gateway's database is too busy for this change; try again", retry_after=1)


def away() -> ApiError:
    """Refuse a call whose database does not answer, or not in time."""
    return ApiError(ErrorCode.BUSY, "the gateway's database does not answer now; try again", retry_after=RETRY_AWAY)


def other_schema() -> ApiError:
    """Refuse what needs this version's schema where another version's is there now."""
    return ApiError(
        ErrorCode.BUSY,
        "the gateway's database has another version's schema; restart this gateway with that version",
        retry_after=RETRY_AWAY,
    )
