"""Journal and lease in PostgreSQL, directly and past PgBouncer."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent
from autoscaler.errors import LockedError
from autoscaler.lock import Lease
from autoscaler.store.db import open_engine
from autoscaler.store.journal import Journal
from tests.engines.pgbouncer import url_past
from tests.engines.postgres import Server
from tests.waiting import wait_until

INTENT = Intent("op1", "cpu", "local", "d-cpu-op1", "t", "l", IntentState.PLANNED, 1.0, 1.0, 9.0)
LONG = 600.0
SHORT = 0.2


class Clock:
    """A process's own clock, which the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["direct", "pooled"])
def url(request: pytest.FixtureRequest, postgres_server: Server) -> Iterator[str]:
    with postgres_server.database() as made:
        yield made if request.param == "direct" else url_past(request.getfixturevalue("pooler"), made)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = open_engine(url)
    yield made
    made.dispose()


def test_only_one_of_a_deployment_holds_the_lease_and_another_deployment_does_not_matter(engine: Engine) -> None:
    one, two = Lease(engine, "one", LONG), Lease(engine, "one", LONG)
    for _ in range(3):
        assert (one.renew(), two.renew()) == (True, False)
        assert (one.is_held(), two.is_held()) == (True, False)
    assert two.holder() == one.owner
    assert Lease(engine, "other", LONG).renew()
    one.give_back()
    assert not one.is_held()
    assert two.renew()


def test_of_many_that_ask_at_once_one_gets_it(engine: Engine) -> None:
    leases = [Lease(engine, "d", LONG) for _ in range(8)]
    begin = threading.Barrier(len(leases))

    def ask(lease: Lease) -> bool:
        begin.wait(20)
        return lease.renew()

    with ThreadPoolExecutor(len(leases)) as threads:
        assert sum(threads.map(ask, leases)) == 1


def test_who_did_not_renew_has_stopped_before_another_may_begin(engine: Engine) -> None:
    clock = Clock()
    lease = Lease(engine, "d", LONG, clock)
    assert lease.renew()
    clock.now += LONG * 0.66
    assert lease.is_held()
    clock.now += LONG * 0.01
    assert not lease.is_held()
    assert not Lease(engine, "d", LONG).renew(), "it has not run out in the database yet"
    assert lease.renew()
    assert lease.is_held()
    assert not lease.overtaken


def test_who_was_frozen_writes_nothing_once_another_has_acted(engine: Engine) -> None:
    clock, journal = Clock(), Journal(engine)
    frozen, other = Lease(engine, "d", SHORT, clock), Lease(engine, "d", LONG)
    journal.guard = frozen.guard
    assert frozen.renew()
    journal.add([INTENT])
    wait_until(other.renew)
    assert frozen.is_held(), "by its own clock no time has passed"
    with pytest.raises(LockedError):
        journal.move("op1", IntentState.CALLING, now=2.0, reason="")
    assert journal.open_intents() == (INTENT,)
    assert not frozen.renew()
    assert frozen.overtaken
    assert not frozen.is_held()
    journal.guard = other.guard
    journal.move("op1", IntentState.CALLING, now=2.0, reason="")


def test_who_was_overtaken_never_acts_again_even_with_the_lease(engine: Engine) -> None:
    first, other = Lease(engine, "d", SHORT), Lease(engine, "d", SHORT)
    assert first.renew()
    wait_until(other.renew)
    wait_until(lambda: not first.renew() and first.overtaken)
    assert not first.is_held()


def test_nobody_writes_without_ever_having_had_the_lease(engine: Engine) -> None:
    journal = Journal(engine)
    journal.guard = Lease(engine, "d").guard
    with pytest.raises(LockedError):
        journal.add([INTENT])


def test_it_is_kept_while_the_block_lasts_also_over_a_restart_of_the_database(postgres_server: Server) -> None:
    with postgres_server.database() as url:
        engine = open_engine(url)
        lease, other = Lease(engine, "d", 6.0), Lease(engine, "d", LONG)
        with lease.kept():
            wait_until(lease.is_held)
            postgres_server.stop()
            postgres_server.start()
            before = lease._held
            wait_until(lambda: lease._held != before, 20)
            assert lease.is_held()
            assert not other.renew()
        assert other.renew(), "it is given back at the end"
        engine.dispose()


def test_two_that_start_at_once_on_an_empty_database_both_open_it(url: str) -> None:
    begin = threading.Barrier(4)

    def start(_: int) -> None:
        begin.wait(20)
        open_engine(url).dispose()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(start, range(4))) == [None] * 4


def test_rows_are_the_same_as_in_sqlite(engine: Engine) -> None:
    journal = Journal(engine)
    journal.add([INTENT])
    assert journal.open_intents() == (INTENT,)
