"""The journal: durable rows, changes by the table, events in the same transaction."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.exc import IntegrityError

from autoscaler.core.actions import Adopt, BootExtended, Learn, Move
from autoscaler.core.backoff import FORGET_SECONDS
from autoscaler.core.states import IntentState, IntentTransitionError
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind, Intent
from autoscaler.errors import JournalError
from autoscaler.store.journal import EVENTS_KEPT, GONE_KEPT_SECONDS, Journal
from autoscaler.store.tables import Row
from gateway.wire.resources import Shape

S = IntentState
KEY = BackOffKey(BackOffKind.OFFER, "cloud", "small@here")
OTHER = BackOffKey(BackOffKind.CLOSING, "cpu")


def an_intent(number: int, state: IntentState = S.PLANNED) -> Intent:
    name = f"d-cpu-op{number}"
    return Intent(f"op{number}", "cpu", "local", name, "t", "l", state, 10.0 + number, 10.0, 100.0, detail="why")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state' / 'journal.db'}"


@pytest.fixture
def journal(url: str) -> Iterator[Journal]:
    opened = Journal.open(url)
    yield opened
    opened.close()


def test_rows_survive_a_restart(journal: Journal, url: str) -> None:
    journal.add([an_intent(1), an_intent(2)])
    again = Journal.open(url)
    assert again.open_intents() == (an_intent(1), an_intent(2))
    again.close()


def test_intents_are_added_all_or_none(journal: Journal) -> None:
    journal.add([an_intent(1)])
    with pytest.raises(IntegrityError):
        journal.add([an_intent(2), an_intent(1)])
    assert journal.open_intents() == (an_intent(1),)


def test_a_move_follows_the_state_table_and_leaves_an_event(journal: Journal) -> None:
    journal.add([an_intent(1)])
    moved = journal.move("op1", S.CALLING, now=20.0, reason="go", attempts=1)
    assert (moved.state, moved.changed_at, moved.detail, moved.attempts) == (S.CALLING, 20.0, "go", 1)
    assert journal.intent("op1") == moved
    with pytest.raises(IntentTransitionError):
        journal.move("op1", S.READY, now=21.0, reason="no")
    assert [(e.subject, e.kind, e.detail) for e in journal.events(10)] == [
        ("d-cpu-op1", "planned", "why"),
        ("d-cpu-op1", "calling", "go"),
    ]


def test_an_amendment_changes_no_state(journal: Journal) -> None:
    journal.add([an_intent(1)])
    amended = journal.amend("op1", now=20.0, reason="later", next_try_at=30.0)
    assert (amended.state, amended.changed_at, amended.next_try_at) == (S.PLANNED, 10.0, 30.0)


def test_an_unknown_field_is_refused(journal: Journal) -> None:
    journal.add([an_intent(1)])
    with pytest.raises(TypeError):
        journal.amend("op1", now=20.0, reason="x", no_such_field=1)
    assert journal.intent("op1") == an_intent(1)


def test_findings_are_written_together(journal: Journal) -> None:
    journal.add([an_intent(1, S.BOOTING)])
    findings = (
        Move("op1", S.READY, "registered", node_id="n1"),
        Adopt(an_intent(2, S.READY), "found"),
        Learn("cpu", "t", "s1", Shape(cpus=1)),
    )
    journal.settle(findings, 30.0)
    first, second = journal.open_intents()
    assert (first.state, first.node_id, second.state) == (S.READY, "n1", S.READY)
    assert journal.learned() == {("cpu", "t", "s1"): Shape(cpus=1)}
    with pytest.raises(IntentTransitionError):
        journal.settle((Learn("cpu", "u", "s1", Shape()), Move("op1", S.PLANNED, "back")), 31.0)
    assert set(journal.learned()) == {("cpu", "t", "s1")}


def test_an_extended_boot_is_stored_with_an_event(journal: Journal) -> None:
    journal.add([an_intent(1, S.BOOTING)])
    journal.settle((BootExtended("op1", 500.0, "a step nearer"),), 110.0)
    row = journal.intent("op1")
    assert (row.state, row.changed_at, row.deadline, row.extended_at) == (S.BOOTING, 10.0, 500.0, 110.0)
    last = journal.events(1)[0]
    assert (last.at, last.subject, last.kind, last.detail) == (110.0, "d-cpu-op1", "extended", "a step nearer")


def test_a_shape_learned_under_another_spec_replaces_the_last(journal: Journal) -> None:
    journal.settle((Learn("cpu", "t", "s1", Shape(cpus=1)), Learn("cpu", "t", "s2", Shape(cpus=2))), 30.0)
    assert journal.learned() == {("cpu", "t", "s2"): Shape(cpus=2)}


def test_the_migrations_make_exactly_what_the_tables_say(journal: Journal) -> None:
    with journal.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Row.metadata) == []


def test_gone_rows_are_remembered_by_name(journal: Journal) -> None:
    journal.add([an_intent(1)])
    journal.move("op1", S.GONE, now=20.0, reason="x")
    assert journal.open_intents() == ()
    assert journal.gone_names() == {"d-cpu-op1"}


def test_pruning_drops_what_is_old_and_nothing_that_is_open(journal: Journal) -> None:
    journal.add([an_intent(1), an_intent(2)])
    journal.move("op1", S.GONE, now=20.0, reason="x")
    journal.prune(20.0 + GONE_KEPT_SECONDS)
    assert journal.gone_names() == {"d-cpu-op1"}
    journal.prune(21.0 + GONE_KEPT_SECONDS)
    assert journal.gone_names() == frozenset()
    assert [intent.operation_id for intent in journal.open_intents()] == ["op2"]


def test_only_the_last_events_are_kept(journal: Journal, url: str) -> None:
    journal.record(1.0, "s", "k", "first")
    with sqlite3.connect(url.removeprefix("sqlite:///")) as raw:
        raw.execute("INSERT INTO event VALUES (?, 2.0, 's', 'k', 'last')", (EVENTS_KEPT + 5,))
    raw.close()
    journal.prune(3.0)
    assert [event.detail for event in journal.events(10)] == ["last"]


def test_back_offs_are_replaced_by_key_and_released(journal: Journal) -> None:
    first, second = BackOff(KEY, 10.0, 1, 0.0, "r"), BackOff(KEY, 30.0, 2, 10.0, "r")
    journal.back_off(first)
    journal.back_off(second)
    assert journal.backoffs() == {KEY: second}
    journal.clear_backoffs([KEY, OTHER])
    assert journal.backoffs() == {}


def test_old_back_offs_are_pruned(journal: Journal) -> None:
    journal.back_off(BackOff(KEY, 100.0, 1, 0.0, "r"))
    journal.back_off(BackOff(OTHER, 90_000.0, 1, 0.0, "r"))
    journal.prune(100.0 + FORGET_SECONDS)
    assert set(journal.backoffs()) == {KEY, OTHER}
    journal.prune(101.0 + FORGET_SECONDS)
    assert set(journal.backoffs()) == {OTHER}


def test_commits_are_synchronous(journal: Journal) -> None:
    with journal._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_journal_of_a_newer_version_is_refused(journal: Journal, url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(JournalError, match="schema 9999, which this version does not know"):
        Journal.open(url)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "j.db").write_text("not a database, and long enough to be looked at " * 50)
    with pytest.raises(JournalError, match=r"j\.db cannot be opened"):
        Journal.open(f"sqlite:///{tmp_path / 'j.db'}")
