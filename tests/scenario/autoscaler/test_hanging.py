"""Calls that hang, in real threads: whoever is called there waits, and everybody else goes on."""

import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from autoscaler import teardown
from autoscaler.clock import DaemonClock
from autoscaler.core.actions import WaitKind
from autoscaler.core.pools import OfferKey
from autoscaler.lanes import ThreadLanes, Turn
from autoscaler.observe import Observer
from autoscaler.provider_polling import Pace
from gateway.client import GatewayClient
from providers.base import Applied, ErrorKind, Scope
from providers.testing.fake import FakeCloud
from tests.scenario.autoscaler.fleet import Fleet, pool
from tests.waiting import wait_until

LOOK = ACT = 0.5
"""Real seconds; all that does not hang is over in far less."""


class Hang:
    """One method of one cloud hangs, at its beginning, until it is let go."""

    def __init__(self, cloud: FakeCloud, method: str) -> None:
        self._method = method
        self._let_go = threading.Event()
        self.hangs = threading.Event()
        cloud.on_call = self

    def __call__(self, method: str) -> None:
        if method == self._method and not self._let_go.is_set():
            self.hangs.set()
            self._let_go.wait(60)
            self.hangs.clear()

    def let_go(self) -> None:
        self._let_go.set()


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Two clouds, their calls in threads."""
    monkeypatch.setattr("autoscaler.reconcile.Turn", partial(Turn, seconds=ACT))
    offers = (OfferKey("small", "here"), OfferKey("small", "there"))
    pools = [pool(name=name, provider=name, offers=offers, max=2, max_in_flight=2) for name in ("east", "west")]
    fleet, lanes = Fleet(tmp_path, *pools, creates_per_tick=4, stops_per_tick=4, max=3), ThreadLanes()
    fleet.reconciler._lanes = lanes
    watch(fleet)
    yield fleet
    lanes.close()
    fleet.journal.close()


def watch(fleet: Fleet) -> None:
    """Lets the autoscaler wait a shorter time."""
    fleet.reconciler._observer = Observer(
        fleet.providers, fleet.gateway, fleet.journal, fleet.clock, fleet.reconciler._observer._guard,
        policy=fleet.policy, pace=Pace(look_seconds=LOOK),
    )  # fmt: skip


def states(fleet: Fleet, name: str) -> list[str]:
    return [intent.state.value for intent in fleet.journal.open_intents() if intent.pool == name]


def west_grows_and_shrinks(fleet: Fleet) -> None:
    """Scale-up, drain and delete, while the other cloud hangs."""
    known = {*fleet.gateway.placed}
    fleet.ask(6)
    fleet.until(lambda: "ready" in states(fleet, "west"), 60)
    for sandbox in [*fleet.gateway.waiting, *fleet.gateway.placed]:
        if sandbox not in known:
            fleet.gateway.finish(sandbox)
    fleet.until(lambda: states(fleet, "west") == [], 120)
    assert len(fleet.clouds["west"].created) > 0
    assert not fleet.clouds["west"].machines


def leave(fleet: Fleet) -> None:
    for sandbox in [*fleet.gateway.waiting, *fleet.gateway.placed]:
        fleet.gateway.finish(sandbox)


def test_while_one_cannot_be_listed_the_other_grows_and_shrinks(two: Fleet) -> None:
    two.ask(4)
    two.until(lambda: states(two, "east") == ["ready"])
    hang = Hang(two.clouds["east"], "list")
    west_grows_and_shrinks(two)
    assert hang.hangs.is_set()
    assert states(two, "east") == ["ready"], "what cannot be seen is left alone"
    leave(two)
    hang.let_go()
    two.until(lambda: not two.states(), 200)
    assert not two.clouds["east"].machines


def test_while_a_create_hangs_the_other_grows_and_shrinks(two: Fleet) -> None:
    hang = Hang(two.clouds["east"], "create")
    two.ask(4)
    two.tick()
    assert hang.hangs.is_set()
    assert states(two, "east") == ["calling"]
    two.tick()
    waits = {wait.subject: wait.kind for wait in two.reports[-1].plan.waits}
    assert waits["provider east"] is WaitKind.BLIND_PROVIDER
    west_grows_and_shrinks(two)
    assert states(two, "east") == ["calling"]
    hang.let_go()
    wait_until(lambda: states(two, "east") == ["booting"])
    two.until(lambda: states(two, "east") == ["ready"])
    assert len(two.clouds["east"].created) == 1
    leave(two)
    two.until(lambda: not two.states(), 200)


def test_while_a_delete_hangs_the_other_grows_and_shrinks(two: Fleet) -> None:
    (sandbox, *_) = two.ask(4)
    two.until(lambda: sandbox in two.gateway.placed)
    leave(two)
    hang = Hang(two.clouds["east"], "delete")
    two.until(lambda: states(two, "east") == ["deleting"])
    wait_until(hang.hangs.is_set)
    west_grows_and_shrinks(two)
    hang.let_go()
    two.until(lambda: not two.states(), 200)
    assert not two.clouds["east"].machines


def test_a_create_that_is_refused_too_late_has_no_other_offer_tried_in_its_place(two: Fleet) -> None:
    """The plan is old by then; the next one, made from what is there, tries it."""
    east = two.clouds["east"]
    hang = Hang(east, "create")
    east.fail_next("create", ErrorKind.CAPACITY, Applied.NO, scope=Scope.OFFER)
    two.ask(4)
    two.tick()
    assert hang.hangs.is_set()
    hang.let_go()
    wait_until(lambda: states(two, "east") == [])
    wait_until(lambda: not hang.hangs.is_set())
    assert east.created == []
    two.until(lambda: bool(east.created or two.clouds["west"].created))
    assert len(two.journal.open_intents()) == 1


def test_refusals_in_two_clouds_at_once_do_not_exceed_what_both_may_have(two: Fleet) -> None:
    for cloud in two.clouds.values():
        cloud.fail_next("create", ErrorKind.CAPACITY, Applied.NO, scope=Scope.OFFER)
    two.ask(40)
    for _ in range(60):
        two.tick()
        assert len(two.journal.open_intents()) <= 3
    assert [len(cloud.created) for cloud in two.clouds.values()] in ([1, 2], [2, 1])


def test_a_gateway_that_never_answers_holds_up_no_proved_delete(two: Fleet) -> None:
    two.ask(8)
    two.until(lambda: len(two.clouds["east"].running()) == 2)
    (lost, *_) = two.clouds["east"].running()
    real = two.gateway
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        two.reconciler._observer._gateway = GatewayClient(f"http://127.0.0.1:{deaf.getsockname()[1]}", "t", attempts=1)
        two.clouds["east"].lose(lost)
        two.until(lambda: lost not in two.clouds["east"].machines, 30)
        assert WaitKind.NO_GATEWAY in {wait.kind for wait in two.reports[-1].plan.waits}
    two.reconciler._observer._gateway = real
    leave(two)
    two.until(lambda: not two.states(), 200)


def test_when_the_fleet_is_given_up_one_that_hangs_is_named_and_the_other_goes(two: Fleet) -> None:
    two.ask(12)
    two.until(lambda: two.states() == ["ready", "ready", "ready"])
    hang, lanes = Hang(two.clouds["east"], "delete"), ThreadLanes()
    west = two.clouds["west"]
    west.stop_seconds = 0.0
    left = teardown.release(
        two.journal, two.providers, clock=DaemonClock(), within=2.0, sleep=lambda _: west.advance(1.0), lanes=lanes
    )
    assert [each.subject for each in left] == ["east"]
    assert not west.machines
    hang.let_go()
    lanes.close()
