"""A gateway that has lost its memory, and one that has lost a node."""

from pathlib import Path

from autoscaler.core.states import IntentState
from autoscaler.core.world import World
from gateway.wire.nodes import NodeRecord
from tests.scenario.autoscaler.fleet import Fleet, pool
from tests.unit.autoscaler.test_policy import an_intent, moves, node_of, reasons, world

S = IntentState


def forgetful(unknown: int, known: int = 0, lasting: float = 2.0) -> World:
    rows = [an_intent(S.READY, number) for number in range(unknown + known)]
    nodes = tuple(node_of(row) for row in rows[unknown:])
    marks = {row.operation_id: lasting for row in rows[:unknown]}
    return world(*rows, nodes=nodes, unknown_nodes_before=marks)


def forget(fleet: Fleet) -> tuple[dict[str, NodeRecord], dict[str, str]]:
    """A gateway over an empty database; what it knew before."""
    memory = (fleet.gateway.records, fleet.gateway.agents)
    fleet.gateway.records, fleet.gateway.agents = {}, {}
    return memory


def test_single_nodes_that_are_forgotten_are_lost_at_the_second_look() -> None:
    assert moves(forgetful(3)) == [S.LOST] * 3
    assert moves(forgetful(4, known=5)) == [S.LOST] * 4
    assert "fleet" not in reasons(forgetful(3))


def test_a_gateway_that_knows_hardly_any_node_is_not_believed_for_a_while() -> None:
    seen = forgetful(4, known=4)
    assert moves(seen) == []
    assert "the gateway does not know 4 nodes any more, so it may have lost its database" in reasons(seen)["fleet"]


def test_after_a_long_time_it_is_believed() -> None:
    assert moves(forgetful(4, lasting=1799.0)) == []
    late = forgetful(4, lasting=1800.0)
    assert moves(late) == [S.LOST] * 4
    assert "fleet" not in reasons(late)


def test_a_gateway_that_gets_its_memory_back_has_its_whole_fleet(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=4))
    fleet.until(lambda: fleet.states() == ["ready"] * 4)
    memory = forget(fleet)
    for _ in range(100):
        fleet.tick()
    assert fleet.states() == ["ready"] * 4
    fleet.gateway.records, fleet.gateway.agents = memory
    for _ in range(20):
        fleet.tick()
    assert (fleet.states(), len(fleet.cloud.created)) == (["ready"] * 4, 4)


def test_what_stays_forgotten_is_deleted_and_made_anew(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=4))
    fleet.until(lambda: fleet.states() == ["ready"] * 4)
    forget(fleet)
    fleet.until(lambda: len(fleet.cloud.created) > 4, ticks=1100)
    fleet.until(lambda: fleet.states() == ["ready"] * 4)
