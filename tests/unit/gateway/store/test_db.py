"""The database: opened, migrated, refused with one sentence, and safe under concurrency."""

import asyncio
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, SQLModel

from gateway.core import transitions
from gateway.errors import ApiError, StoreError
from gateway.store import sandboxes
from gateway.store.db import Database, StaleError, make_engine, migrate
from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import SandboxState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def new(name: str) -> transitions.Sandbox:
    return transitions.accepted(SandboxSpec(id=name, image="busybox", labels={"k": name}), "hash", "op", NOW)


def test_the_migrations_make_exactly_what_the_tables_say(tmp_path: Path) -> None:
    Database.open(url_of(tmp_path / "g.db")).close()
    engine = make_engine(url_of(tmp_path / "g.db"))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()


async def test_sqlite_runs_in_wal_with_foreign_keys_and_writes_that_lock_at_once(tmp_path: Path) -> None:
    db = Database.open(url_of(tmp_path / "g.db"))

    def pragmas(session: Session) -> dict[str, object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return {name: session.execute(text(f"PRAGMA {name}")).scalar() for name in names}

    expected = {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 10_000}
    assert await db.write(pragmas) == expected
    assert await db.read(pragmas) == expected
    statements: list[str] = []
    event.listen(db._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    await db.write(lambda session: session.execute(text("SELECT 1")).scalar())
    assert statements[0] == "BEGIN IMMEDIATE"
    db.close()


def test_only_the_owner_may_read_the_database_and_its_side_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "gateway.db").touch(mode=0o644)
    database = Database.open(f"sqlite:///{tmp_path / 'gateway.db'}")
    try:
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        database.close()
    assert "gateway.db-wal" in modes
    assert set(modes.values()) == {0o600}, modes


def test_a_newer_database_is_refused_with_one_sentence(tmp_path: Path) -> None:
    Database.open(url_of(tmp_path / "g.db")).close()
    raw = sqlite3.connect(tmp_path / "g.db")
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    with pytest.raises(StoreError, match="written by a newer version") as caught:
        Database.open(url_of(tmp_path / "g.db"))
    assert "\n" not in str(caught.value)


def test_a_failed_migration_leaves_nothing_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("gateway.store.db.migrate", _break_midway)
        with pytest.raises(RuntimeError):
            Database.open(url_of(tmp_path / "g.db"))
    raw = sqlite3.connect(tmp_path / "g.db")
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == []
    raw.close()
    Database.open(url_of(tmp_path / "g.db")).close()


def _break_midway(connection: Connection) -> None:
    migrate(connection)
    raise RuntimeError("power cut")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="must be a file"):
        Database.open(url)


def test_a_path_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=str(tmp_path / "file")):
        Database.open(url_of(tmp_path / "file" / "g.db"))


def test_an_unreachable_server_is_named_without_its_password() -> None:
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1") as caught:
        Database.open("postgresql://user:hidden@127.0.0.1:1/gateway")
    assert "hidden" not in str(caught.value)


async def test_a_full_disk_is_a_typed_error_and_writes_nothing(tmp_path: Path) -> None:
    db = Database.open(url_of(tmp_path / "g.db"))
    await db.write(lambda session: session.execute(text("PRAGMA max_page_count = 1")))

    def fill(session: Session) -> None:
        for index in range(500):
            sandboxes.add(session, new(f"s{index}"))

    with pytest.raises(ApiError) as caught:
        await db.write(fill)
    assert caught.value.code is ErrorCode.DISK_FULL
    assert await db.read(lambda session: sandboxes.get(session, "s0")) is None
    db.close()


@pytest.mark.parametrize(
    ("driver_code", "expected"),
    [
        (sqlite3.SQLITE_FULL, ErrorCode.DISK_FULL),
        (sqlite3.SQLITE_BUSY, ErrorCode.BUSY),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, ErrorCode.BUSY),
        (sqlite3.SQLITE_CORRUPT, None),
    ],
)
async def test_the_code_of_the_driver_decides(tmp_path: Path, driver_code: int, expected: ErrorCode | None) -> None:
    db = Database.open(url_of(tmp_path / "g.db"))

    def fail(session: Session) -> None:
        cause = sqlite3.OperationalError("something")
        cause.sqlite_errorcode = driver_code
        raise OperationalError("UPDATE", {}, cause)

    with pytest.raises(OperationalError if expected is None else ApiError) as caught:
        await db.write(fail)
    if expected is not None:
        assert caught.value.code is expected
    db.close()


async def test_a_stale_write_is_retried_and_gives_up_in_the_end(tmp_path: Path) -> None:
    db = Database.open(url_of(tmp_path / "g.db"))
    tries: list[int] = []

    def once_stale(session: Session) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise StaleError("changed")
        return len(tries)

    assert await db.write(once_stale) == 3

    def always_stale(session: Session) -> int:
        raise StaleError("changed")

    with pytest.raises(ApiError) as caught:
        await db.write(always_stale)
    assert caught.value.code is ErrorCode.BUSY
    db.close()


async def test_a_change_of_an_old_version_is_stale(tmp_path: Path) -> None:
    db = Database.open(url_of(tmp_path / "g.db"))
    old = await db.write(lambda session: sandboxes.add(session, new("a")))
    after = transitions.failed(old, ErrorCode.NO_ROOM, "x", NOW)
    saved = await db.write(lambda session: sandboxes.save(session, old, after))
    assert saved.version == old.version + 1
    assert await db.read(lambda session: sandboxes.get(session, "a")) == saved
    with pytest.raises(ApiError, match="too busy"):
        await db.write(lambda session: sandboxes.save(session, old, after))
    db.close()


async def test_readers_go_on_while_a_writer_writes(tmp_path: Path) -> None:
    db = Database.open(url_of(tmp_path / "g.db"))
    loop = asyncio.get_running_loop()
    writing, read = asyncio.Event(), asyncio.Event()

    def write(session: Session) -> None:
        sandboxes.add(session, new("a"))
        loop.call_soon_threadsafe(writing.set)
        asyncio.run_coroutine_threadsafe(read.wait(), loop).result(30)

    task = asyncio.create_task(db.write(write))
    await writing.wait()
    assert await db.read(lambda session: sandboxes.get(session, "a")) is None
    read.set()
    await task
    assert await db.read(lambda session: sandboxes.get(session, "a")) == new("a")
    db.close()


async def test_purge_deletes_labels_too(tmp_path: Path) -> None:
    db = Database.open(url_of(tmp_path / "g.db"))

    def fn(session: Session) -> int:
        live = sandboxes.add(session, new("live"))
        assert live.state == "pending"
        gone = sandboxes.add(session, new("gone"))
        sandboxes.save(session, gone, transitions.deleted(gone, NOW))
        return sandboxes.purge(session, datetime(2026, 1, 2, tzinfo=UTC))

    assert await db.write(fn) == 1
    left = await db.read(lambda session: session.execute(text("SELECT sandbox_id FROM sandbox_labels")).scalars().all())
    assert left == ["live"]
    db.close()


async def test_of_what_ended_without_a_ttl_only_what_ended_long_ago_is_left_behind(tmp_path: Path) -> None:
    db = Database.open(url_of(tmp_path / "g.db"))
    day = timedelta(days=1)
    ended = {"state": SandboxState.FAILED, "ended_at": NOW}
    rows = {
        "old": ended,
        "lost": ended | {"state": SandboxState.LOST},
        "young": ended | {"ended_at": NOW + day},
        "may-run-on": ended | {"ended_at": None},
        "has-a-ttl": ended | {"expires_at": NOW + 9 * day},
        "runs": {"state": SandboxState.RUNNING},
        "deleted": ended | {"state": SandboxState.DELETED},
    }

    def fn(session: Session) -> set[str]:
        for name, fields in rows.items():
            sandboxes.add(session, replace(new(name), **fields))  # type: ignore[arg-type]
        left = sandboxes.left_behind(session, NOW + 2 * day, changed=NOW, asked=NOW, ended=NOW + day / 2)
        return {row.id for row in left}

    assert await db.write(fn) == {"old", "lost"}
    db.close()
