"""Journal and lock in PostgreSQL."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from autoscaler import lock
from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent
from autoscaler.errors import LockedError
from autoscaler.store.db import open_engine
from autoscaler.store.journal import Journal


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    made = open_engine(postgres_url)
    yield made
    made.dispose()


def test_the_second_of_a_deployment_is_refused_and_another_deployment_is_not(engine: Engine) -> None:
    with lock.held_in_database(engine, "one") as assure:
        assure()
        with pytest.raises(LockedError, match="another autoscaler of one"), lock.held_in_database(engine, "one"):
            raise AssertionError
        with lock.held_in_database(engine, "two"):
            pass
    with lock.held_in_database(engine, "one"):
        pass


def test_a_lost_connection_is_a_lost_lock(engine: Engine) -> None:
    with lock.held_in_database(engine, "one") as assure:
        with engine.begin() as other:
            other.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"),
            )
        with pytest.raises(LockedError, match="is lost"):
            assure()


def test_rows_are_the_same_as_in_sqlite(engine: Engine) -> None:
    journal = Journal(engine)
    intent = Intent("op1", "cpu", "local", "d-cpu-op1", "t", "l", IntentState.PLANNED, 1.0, 1.0, 9.0)
    journal.add([intent])
    assert journal.open_intents() == (intent,)
