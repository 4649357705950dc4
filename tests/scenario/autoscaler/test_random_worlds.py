"""Random worlds in virtual time: whatever goes wrong, limits hold at every moment and the fleet comes to rest."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.wire.states import NodeState
from providers.base import Applied, ErrorKind, Scope
from providers.testing.fake import SimulatedCrash
from tests.scenario.autoscaler.fleet import Fleet, pool

METHODS = ("create", "delete", "list", "get", "offers")
KINDS = tuple(ErrorKind)

faults = st.tuples(st.sampled_from(METHODS), st.sampled_from(KINDS), st.sampled_from(list(Applied)))
happening = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 20)),
    st.tuples(st.just("ask"), st.integers(1, 12)),
    st.tuples(st.just("finish"), st.integers(0, 5)),
    st.tuples(st.just("crash"), st.integers(0, 12)),
    st.tuples(
        st.just("fault"), st.tuples(st.sampled_from(METHODS), st.sampled_from(KINDS), st.sampled_from(list(Applied)))
    ),
    st.tuples(st.just("lose"), st.sampled_from(METHODS)),
    st.tuples(st.just("vanish"), st.integers(0, 3)),
    st.tuples(st.just("break"), st.integers(0, 3)),
    st.tuples(st.just("silence"), st.integers(0, 3)),
    st.tuples(st.just("stuck"), st.booleans()),
    st.tuples(st.just("outage"), st.booleans()),
    st.tuples(st.just("skew"), st.integers(-4000, 4000)),
)


class World:
    """Applies happenings to a fleet, one after the other."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def apply(self, kind: str, value: object) -> None:
        getattr(self, f"do_{kind}")(value)
        self.fleet.crashing_tick()

    def do_wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.fleet.crashing_tick()

    def do_ask(self, count: int) -> None:
        self.fleet.ask(count)

    def do_finish(self, number: int) -> None:
        for sandbox in [*self.fleet.gateway.placed][: number + 1]:
            self.fleet.gateway.finish(sandbox)

    def do_crash(self, steps: int) -> None:
        left = steps

        def step(name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self.fleet.watch(None)
                raise SimulatedCrash(name)

        self.fleet.watch(step)

    def do_fault(self, fault: tuple[str, ErrorKind, Applied]) -> None:
        method, kind, applied = fault
        self.fleet.cloud.fail_next(method, kind, applied, scope=Scope.OFFER)

    def do_lose(self, method: str) -> None:
        self.fleet.cloud.lose_answer(method)

    def do_vanish(self, number: int) -> None:
        if name := self.nth(number):
            self.fleet.cloud.vanish(name)

    def do_break(self, number: int) -> None:
        if name := self.nth(number):
            self.fleet.cloud.lose(name)

    def do_silence(self, number: int) -> None:
        if name := self.nth(number):
            self.fleet.gateway.silent ^= {name}

    def do_stuck(self, stuck: bool) -> None:
        self.fleet.cloud.stuck_booting = stuck

    def do_outage(self, outage: bool) -> None:
        self.fleet.gateway.unreachable = outage

    def do_skew(self, seconds: int) -> None:
        self.fleet.clock.skew = float(seconds)

    def nth(self, number: int) -> str | None:
        names = [*self.fleet.cloud.machines]
        return names[number] if number < len(names) else None

    def calm(self) -> None:
        """Everything works again, and nobody wants anything."""
        self.fleet.watch(None)
        self.fleet.gateway.unreachable = False
        self.fleet.gateway.silent.clear()
        self.fleet.cloud.stuck_booting = False
        self.fleet.cloud._faults.clear()
        for sandbox in [*self.fleet.gateway.waiting, *self.fleet.gateway.placed]:
            self.fleet.gateway.finish(sandbox)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(happening, min_size=3, max_size=25), st.integers(0, 1))
def test_limits_hold_and_the_fleet_comes_to_rest(
    tmp_path: Path, happenings: list[tuple[str, object]], least: int
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
        fleet = Fleet(
            Path(directory), pool(min=least, max=2, boot_seconds=90.0, idle_seconds=20.0), silent_seconds=400.0
        )
        try:
            world = World(fleet)
            for kind, value in happenings:
                world.apply(kind, value)
            world.calm()
            # Longer than every deadline and back-off, in longer steps: rest is all that is asked for.
            for _ in range(2000):
                if at_rest(fleet, least):
                    break
                fleet.tick(20.0)
            assert at_rest(fleet, least), (fleet.journal.open_intents(), fleet.cloud.machines, fleet.gateway.records)
        finally:
            fleet.journal.close()


def at_rest(fleet: Fleet, least: int) -> bool:
    nodes = [record for record in fleet.gateway.records.values() if record.state is NodeState.READY]
    return (
        fleet.states() == ["ready"] * least
        and len(fleet.cloud.machines) == least
        and len(nodes) == len(fleet.gateway.records) == least
    )
