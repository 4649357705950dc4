"""One journal, written by several threads at once, as lanes do; in PostgreSQL too."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

from autoscaler.core.states import IntentState, IntentTransitionError
from autoscaler.core.world import Intent
from autoscaler.store.journal import Journal

THREADS, ROWS = 6, 30
PRICE = Decimal("0.5")
LIFE = (IntentState.CALLING, IntentState.BOOTING, IntentState.READY, IntentState.DELETING, IntentState.GONE)


@pytest.fixture(params=["sqlite", "postgresql"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    sqlite = request.param == "sqlite"
    made = Journal.open(
        f"sqlite:///{tmp_path / 'journal.db'}" if sqlite else str(request.getfixturevalue("postgres_url"))
    )
    yield made
    made.close()


def intents(count: int) -> list[Intent]:
    return [
        Intent(
            f"op{n}",
            "cpu",
            "p",
            f"d-cpu-op{n}",
            "t",
            "l",
            IntentState.PLANNED,
            0.0,
            0.0,
            9.0,
            instance_id="i",
            price=PRICE,
        )
        for n in range(count)
    ]


def live(journal: Journal, number: int) -> None:
    for state in LIFE:
        journal.move(f"op{number}", state, now=1.0, reason="")
        journal.amend(f"op{number}", now=1.0, reason="noted")


def test_lives_beside_each_other_end_with_everything_booked(journal: Journal) -> None:
    journal.add(intents(ROWS))
    live(journal, 0)  # the month's first booking of a pool comes from one lane
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda number: live(journal, number), range(1, ROWS)))
    assert journal.open_intents() == ()
    assert journal.spent(1.0) == {"cpu": PRICE * ROWS}
    assert len(journal.events(10_000)) == ROWS * (1 + 2 * len(LIFE))


def test_of_several_that_change_one_row_one_does(journal: Journal) -> None:
    journal.add(intents(ROWS))

    def call(number: int) -> int:
        try:
            journal.move(f"op{number}", IntentState.CALLING, now=1.0, reason="")
        except IntentTransitionError:
            return 0
        return 1

    with ThreadPoolExecutor(THREADS) as pool:
        done = list(pool.map(call, [number for number in range(ROWS) for _ in range(THREADS)]))
    assert sum(done) == ROWS
