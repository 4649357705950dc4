"""Placement: a pure function that never gives what is not there."""

from datetime import UTC, datetime
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import placement
from gateway.core.model import Node
from gateway.core.placement import MAX_REASONS, NeverFits, NodeRoom, NoRoom, Placed, Requirements, place, place_all
from gateway.wire.capacity import PoolCeiling
from gateway.wire.nodes import NodeRole, RuntimeReport
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState, WaitReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNSC = RuntimeReport(name="runsc", version="1", isolations=["gvisor"])
DOCKER = RuntimeReport(name="docker", version="1", isolations=["gvisor", "runc"], gpus=True)
SMALL = Shape(cpus=4, memory_mb=8192, disk_mb=50_000, slots=10)
BIG = Shape(cpus=16, memory_mb=65536, disk_mb=500_000, slots=100)
GPU = Shape(cpus=16, memory_mb=65536, disk_mb=500_000, gpus=4, slots=100)
ONE = Shape(cpus=1, memory_mb=1024, disk_mb=4096, slots=1)


def room(
    name: str,
    total: Shape = SMALL,
    reserved: Shape | None = None,
    state: NodeState = NodeState.READY,
    runtimes: tuple[RuntimeReport, ...] = (RUNSC,),
    role: NodeRole = "sandbox",
) -> NodeRoom:
    node = Node(
        id=name, instance=name, pool="p", state=state, node_url="http://n", agent_version="1", total=total,
        runtimes=runtimes, registered_at=NOW, heartbeat_at=NOW, role=role,
    )  # fmt: skip
    return NodeRoom(node, reserved or Shape())


def ceiling(shape: Shape, max_nodes: int = 5, runtimes: tuple[str, ...] = ("runsc",)) -> PoolCeiling:
    return PoolCeiling(pool="p", shape=shape, runtimes=list(runtimes), isolations=["gvisor"], max_nodes=max_nodes)


def test_the_fullest_node_with_room_is_taken() -> None:
    rooms = [room("empty"), room("half", reserved=Shape(cpus=2, memory_mb=4096, disk_mb=20_000, slots=2))]
    assert place(Requirements(ONE), rooms) == Placed("half", "runsc", 0)


def test_gpu_nodes_are_kept_for_gpu_work() -> None:
    rooms = [room("a-gpu", GPU, runtimes=(RUNSC, DOCKER)), room("b-cpu", BIG)]
    assert place(Requirements(ONE), rooms) == Placed("b-cpu", "runsc", 0)
    wanted = Requirements(ONE.model_copy(update={"gpus": 2}), runtime="docker")
    assert place(wanted, rooms) == Placed("a-gpu", "docker", 2)


def test_a_gpu_node_that_is_fuller_still_takes_other_work_last() -> None:
    busy = Shape(cpus=14, memory_mb=60_000, disk_mb=400_000, gpus=4, slots=90)
    gpu = room("a-gpu", GPU, busy, runtimes=(RUNSC, DOCKER))
    assert place(Requirements(ONE), [gpu, room("b-cpu", BIG)]) == Placed("b-cpu", "runsc", 0)
    assert place(Requirements(ONE), [gpu, room("b-cpu", SMALL, SMALL)]) == Placed("a-gpu", "runsc", 0)


def test_a_builder_holds_no_sandbox_and_does_not_count_as_capacity() -> None:
    builder = room("builder", BIG, role="builder")
    assert place(Requirements(ONE), [builder]) == NoRoom((), WaitReason.NO_NODE, ANY)
    assert place(Requirements(ONE), [builder, room("both", role="both")]) == Placed("both", "runsc", 0)
    placement = place_all([("one", Requirements(ONE))], [builder, room("small")])
    assert placement == {"one": Placed("small", "runsc", 0)}
    assert isinstance(place(Requirements(BIG), [builder, room("small")]), NeverFits)


def test_all_gpus_means_every_one_of_a_node_that_has_none_in_use() -> None:
    wanted = Requirements(ONE.model_copy(update={"gpus": 1}), runtime="docker", all_gpus=True)
    free = room("free", GPU, runtimes=(DOCKER,))
    used = room("used", GPU, Shape(cpus=1, gpus=1, slots=1), runtimes=(DOCKER,))
    assert place(wanted, [free]) == Placed("free", "docker", 4)
    assert isinstance(place(wanted, [used]), NoRoom)


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.UNREACHABLE])
def test_a_node_that_takes_nothing_now_makes_the_sandbox_wait(state: NodeState) -> None:
    answer = place(Requirements(ONE), [room("n", state=state)])
    assert answer == NoRoom((f"node n: is {state}",), WaitReason.NO_ROOM, ANY)


@pytest.mark.parametrize("state", [NodeState.LOST, NodeState.GONE])
def test_a_node_that_is_away_counts_for_nothing(state: NodeState) -> None:
    assert place(Requirements(ONE), [room("n", state=state)]) == NoRoom((), WaitReason.NO_NODE, ANY)


def test_a_node_that_has_not_reported_yet_is_waited_for() -> None:
    known = room("n")
    silent = NodeRoom(Node(**{**known.node.__dict__, "heartbeat_at": None}), known.reserved)
    assert place(Requirements(ONE), [silent]) == NoRoom(("node n: has not reported yet",), WaitReason.NO_ROOM, ANY)


def test_nothing_known_is_no_reason_to_refuse() -> None:
    assert place(Requirements(BIG), []) == NoRoom((), WaitReason.NO_NODE, ANY)
    assert place(Requirements(BIG), [], [ceiling(BIG, max_nodes=0)]) == NoRoom((), WaitReason.NO_NODE, ANY)


@pytest.mark.parametrize(
    ("needs", "nodes", "why"),
    [
        (Requirements(ONE), [], WaitReason.NO_NODE),
        (Requirements(ONE, "docker"), [room("n")], WaitReason.NO_ENGINE),
        (Requirements(BIG), [room("n")], WaitReason.TOO_LARGE),
        (Requirements(ONE), [room("n", reserved=SMALL)], WaitReason.NO_ROOM),
    ],
)
def test_what_waits_says_for_what(needs: Requirements, nodes: list[NodeRoom], why: WaitReason) -> None:
    answer = place(needs, nodes, [ceiling(BIG, runtimes=("runsc", "docker"))])
    assert isinstance(answer, NoRoom)
    assert answer.why is why
    assert all(reason in answer.sentence for reason in answer.reasons)


def test_an_engine_that_no_node_has_and_no_pool_brings_never_fits() -> None:
    runc = Requirements(ONE, "docker", "runc")
    for nodes, pools in (([room("n")], []), ([room("n")], [ceiling(BIG, runtimes=("docker",))]), ([], [ceiling(BIG)])):
        assert isinstance(place(runc, nodes, pools), NeverFits)


def test_above_every_node_and_pool_it_never_fits() -> None:
    wanted = Requirements(ONE.model_copy(update={"memory_mb": 100_000}))
    answer = place(wanted, [room("n")], [ceiling(BIG)])
    assert isinstance(answer, NeverFits)
    assert answer.maximum == BIG
    assert answer.reasons == (
        "node n: is too small: memory_mb 8192 of 100000",
        "pool p: is too small: memory_mb 65536 of 100000",
    )


def test_amounts_in_a_sentence_are_whole_numbers() -> None:
    answer = place(Requirements(ONE.model_copy(update={"memory_mb": 10_000_000})), [room("n")])
    assert isinstance(answer, NeverFits)
    assert answer.reasons == ("node n: is too small: memory_mb 8192 of 10000000",)


def test_a_pool_that_may_grow_is_waited_for() -> None:
    wanted = Requirements(ONE.model_copy(update={"memory_mb": 50_000}))
    assert isinstance(place(wanted, [room("n")], [ceiling(BIG)]), NoRoom)
    assert isinstance(place(wanted, [room("n")], [ceiling(BIG, max_nodes=0)]), NeverFits)


def test_a_runtime_that_nobody_has_never_fits() -> None:
    wanted = Requirements(ONE, isolation="runc", runtime="docker")
    assert isinstance(place(wanted, [room("n")], [ceiling(BIG)]), NeverFits)


def test_a_node_that_refused_is_left_out() -> None:
    assert place(Requirements(ONE, avoid=frozenset({"a"})), [room("a"), room("b")]) == Placed("b", "runsc", 0)


def test_the_preferred_runtime_is_taken_where_both_will_do() -> None:
    assert place(Requirements(ONE), [room("n", runtimes=(DOCKER, RUNSC))]) == Placed("n", "runsc", 0)
    assert place(Requirements(ONE), [room("n", runtimes=(DOCKER,))]) == Placed("n", "docker", 0)


def test_a_refusal_names_some_nodes_and_counts_the_others() -> None:
    full = [room(f"n{number:03}", reserved=SMALL) for number in range(MAX_REASONS + 5)]
    answer = place(Requirements(ONE), full)
    assert isinstance(answer, NoRoom)
    assert len(answer.reasons) == MAX_REASONS + 1
    assert answer.reasons[-1] == "and 5 more nodes"


def test_equal_requirements_have_one_key() -> None:
    needs = [
        Requirements(ONE),
        Requirements(ONE, "docker"),
        Requirements(ONE, isolation="runc"),
        Requirements(ONE, all_gpus=True),
        Requirements(BIG),
    ]
    assert len({wanted.key for wanted in needs}) == len(needs)
    assert Requirements(ONE, avoid=frozenset({"n"})).key == Requirements(ONE.model_copy()).key


shapes = st.builds(
    Shape,
    cpus=st.floats(0.1, 16).map(lambda value: round(value, 2)),
    memory_mb=st.integers(16, 32768),
    disk_mb=st.integers(16, 200_000),
    gpus=st.integers(0, 4),
    slots=st.just(1),
)
totals = st.builds(
    Shape,
    cpus=st.integers(1, 32).map(float),
    memory_mb=st.integers(512, 65536),
    disk_mb=st.integers(1024, 500_000),
    gpus=st.integers(0, 8),
    slots=st.integers(0, 8),
)
worlds = st.lists(
    st.tuples(
        totals,
        st.sampled_from(list(NodeState)),
        st.sampled_from([(RUNSC,), (DOCKER,), (RUNSC, DOCKER)]),
    ),
    max_size=6,
).map(lambda nodes: [room(f"n{index}", total, None, state, runs) for index, (total, state, runs) in enumerate(nodes)])


@settings(max_examples=200, deadline=None)
@given(worlds, st.lists(st.tuples(shapes, st.booleans()), max_size=25))
def test_a_batch_never_takes_more_than_there_is(rooms: list[NodeRoom], needs: list[tuple[Shape, bool]]) -> None:
    waiting = [
        (f"s{index}", Requirements(shape, "docker" if shape.gpus else None, all_gpus=all_gpus and shape.gpus > 0))
        for index, (shape, all_gpus) in enumerate(needs)
    ]
    answers = place_all(waiting, rooms)
    taken = {candidate.node.id: Shape() for candidate in rooms}
    by_id = {candidate.node.id: candidate for candidate in rooms}
    for name, wanted in waiting:
        answer = answers[name]
        if isinstance(answer, Placed):
            node = by_id[answer.node_id].node
            assert node.state is NodeState.READY
            assert any(
                report.name == answer.runtime and wanted.isolation in report.isolations for report in node.runtimes
            )
            taken[answer.node_id] += wanted.shape.model_copy(update={"gpus": answer.gpus})
        else:
            assert name in answers
    for candidate in rooms:
        assert taken[candidate.node.id].fits(candidate.node.total)


@settings(max_examples=100, deadline=None)
@given(worlds, shapes, st.randoms(use_true_random=False))
def test_the_answer_does_not_depend_on_the_order_of_the_nodes(rooms: list[NodeRoom], shape: Shape, rng: object) -> None:
    shuffled = list(rooms)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert place(Requirements(shape), rooms) == place(Requirements(shape), shuffled)


@settings(max_examples=100, deadline=None)
@given(worlds, shapes)
def test_it_is_placed_exactly_when_some_node_has_room(rooms: list[NodeRoom], shape: Shape) -> None:
    wanted = Requirements(shape, "docker" if shape.gpus else None)
    able = [
        candidate
        for candidate in rooms
        if candidate.node.state is NodeState.READY
        and shape.fits(candidate.free)
        and (DOCKER in candidate.node.runtimes or not shape.gpus)
    ]
    assert isinstance(place(wanted, rooms), Placed) == bool(able)


@settings(max_examples=200, deadline=None)
@given(worlds, st.lists(st.tuples(shapes, st.booleans(), st.sets(st.sampled_from(["n0", "n1"]))), max_size=12))
def test_a_batch_answers_as_one_after_the_other(
    rooms: list[NodeRoom], needs: list[tuple[Shape, bool, set[str]]]
) -> None:
    waiting = [
        (
            f"s{index}-{turn}",
            Requirements(shape, "docker" if shape.gpus else None, "gvisor", everything, frozenset(avoid)),
        )
        for turn in range(3)
        for index, (shape, all_gpus, avoid) in enumerate(needs)
        for everything in [all_gpus and shape.gpus > 0]
    ]
    answers = place_all(waiting, rooms)
    left = {candidate.node.id: candidate for candidate in rooms}
    refused: dict[Requirements, object] = {}
    for name, wanted in waiting:
        answer = place(wanted, left.values())
        if isinstance(answer, Placed):
            assert answers[name] == answer
            taken = wanted.shape.model_copy(update={"gpus": answer.gpus})
            node = left[answer.node_id]
            left[answer.node_id] = NodeRoom(node.node, node.reserved + taken)
        else:
            assert answers[name] == refused.setdefault(wanted, answers[name]), "the words of the first refusal"
            assert type(answers[name]) is type(answer)


def test_the_work_of_a_batch_grows_with_what_is_placed_and_not_with_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    original = placement.fit

    def counted(wanted: Requirements, candidate: NodeRoom) -> object:
        nonlocal looks
        looks += 1
        return original(wanted, candidate)

    monkeypatch.setattr(placement, "fit", counted)
    nodes = [room(f"n{number:03}", SMALL) for number in range(100)]
    needs = [Requirements(ONE), Requirements(ONE.model_copy(update={"memory_mb": 2048}))]
    for waiting in (1_000, 4_000):
        looks = 0
        answers = place_all([(f"s{number}", needs[number % 2]) for number in range(waiting)], nodes)
        placed = sum(isinstance(answer, Placed) for answer in answers.values())
        assert placed > 300
        assert looks <= len(needs) * len(nodes) + 6 * placed
