"""Which GPUs a sandbox gets, and for how long they are its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import SandboxState
from node_agent.errors import NodeError, RuntimeFailure
from node_agent.host.machine import Gpu
from node_agent.runtime.base import Order
from node_agent.sandboxes.gpus import choose_gpus
from node_agent.sandboxes.manager import SandboxManager
from node_agent.sandboxes.table import NodeSandbox
from tests.fakes.runtime import FakeControls, FakeGpuRuntime

UUIDS = [f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in range(3)]
MIG = "MIG-00000000-0000-0000-0000-00000000000{}"
PLAIN = tuple(Gpu(number) for number in range(3))
TOLD = tuple(Gpu(number, uuid) for number, uuid in enumerate(UUIDS))


def refused(asked: int | str, held: list[str], gpus: tuple[Gpu, ...] = PLAIN) -> ErrorCode:
    with pytest.raises(NodeError) as caught:
        choose_gpus(asked, gpus, held)
    return caught.value.code


@pytest.mark.parametrize(
    ("asked", "held", "chosen"),
    [
        (0, ["0", "1", "2"], ()),
        (1, [], ("0",)),
        (1, ["0"], ("1",)),
        (2, ["1"], ("0", "2")),
        ("all", [], ("0", "1", "2")),
        ("device=2,0", ["1"], ("2", "0")),
        (1, ["0:1"], ("1",)),  # an instance of a GPU keeps all of it from others
        ("device=0:2", ["0:1"], ("0:2",)),
        (f"device={MIG.format(1)}", [MIG.format(2)], (MIG.format(1),)),
    ],
)
def test_a_sandbox_gets_what_no_other_holds(asked: int | str, held: list[str], chosen: tuple[str, ...]) -> None:
    assert choose_gpus(asked, PLAIN, held) == chosen


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        (1, ["0", "1", "2"]),
        (3, ["1"]),
        ("all", ["1"]),
        ("device=1", ["1"]),
        ("device=0,1", ["1"]),
        ("device=0", ["0:1"]),
        ("device=0:1", ["0"]),
        ("device=0:1", ["0:1"]),
        (1, [MIG.format(1)]),  # of which GPU is not known
        (f"device={MIG.format(1)}", ["2"]),
        (f"device={MIG.format(1)}", [MIG.format(1)]),
    ],
)
def test_what_another_sandbox_holds_is_no_room(asked: int | str, held: list[str]) -> None:
    assert refused(asked, held) is ErrorCode.NODE_REFUSED


@pytest.mark.parametrize("name", ["3", "3:0", UUIDS[0].replace("0", "f")])
def test_a_device_that_the_node_lacks_is_no_matter_of_room(name: str) -> None:
    assert refused(f"device={name}", [], TOLD) is ErrorCode.CAPACITY


@pytest.mark.parametrize("names", [f"0,{UUIDS[0]}", "0,0:1", "1:0,1"])
def test_one_device_by_two_names_is_invalid(names: str) -> None:
    assert refused(f"device={names}", [], TOLD) is ErrorCode.INVALID_REQUEST


def test_number_and_uuid_are_one_device() -> None:
    assert choose_gpus(1, TOLD, ["0"]) == (UUIDS[1],)
    assert choose_gpus("device=2", TOLD, []) == (UUIDS[2],)
    assert refused("device=0", [UUIDS[0]], TOLD) is ErrorCode.NODE_REFUSED
    assert refused(f"device={UUIDS[0]}", ["0"], TOLD) is ErrorCode.NODE_REFUSED


def test_the_next_generation_keeps_its_devices() -> None:
    assert choose_gpus(1, PLAIN, [], former=("2",)) == ("2",)
    assert choose_gpus(1, PLAIN, ["2"], former=("2",)) == ("0",)


# -- in a node --------------------------------------------------------------------------------------------------------


class Node:
    """A node of two GPUs over the fake engine, which outlives its agent."""

    def __init__(self, root: Path) -> None:
        self.controls = FakeControls()
        self._root = root
        self._pool = ThreadPoolExecutor(4)
        self.start()

    def start(self) -> None:
        """Start an agent, as after a crash of the one before."""
        total = Shape(cpus=64, memory_mb=10**6, disk_mb=10**6, gpus=2, slots=64)
        runtime = FakeGpuRuntime(self._root, self.controls)
        self.manager = SandboxManager(
            {"docker": runtime}, lambda: total, lambda _: None, self._pool, self._pool, PLAIN[:2]
        )
        self.manager.adopt()

    def create(self, name: str, generation: int = 1, **fields: Any) -> tuple[str, ...]:
        """Create a sandbox; return its devices."""
        wanted = {"id": name, "image": "i", "command": ["sleep", "60"], "runtime": "docker", **fields}
        spec = SandboxSpec.model_validate(wanted)
        order = Order(name, generation, f"op-{generation}", spec, spec.sha256())
        made: NodeSandbox = self.manager.create(order, "docker").result(30)
        assert made.state is SandboxState.RUNNING
        return made.order.gpus

    def delete(self, name: str, generation: int = 1) -> None:
        self.manager.delete(name, generation).result(30)

    def close(self) -> None:
        for sandbox in self.manager.sandboxes():
            self.delete(sandbox.id, sandbox.generation)
        self._pool.shutdown()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_two_sandboxes_get_two_gpus_and_a_third_none(node: Node) -> None:
    assert (node.create("a", gpus=1), node.create("b", gpus=1)) == (("0",), ("1",))

    with pytest.raises(NodeError) as caught:
        node.create("c", gpus="device=0")

    assert caught.value.code is ErrorCode.NODE_REFUSED
    node.delete("a")
    assert node.create("c", gpus="device=0") == ("0",)


def test_a_device_that_is_held_is_refused_where_the_count_would_fit(node: Node) -> None:
    node.create("a", gpus="device=1")

    for asked in ("device=1", "all"):
        with pytest.raises(NodeError) as caught:
            node.create("b", gpus=asked)
        assert caught.value.code is ErrorCode.NODE_REFUSED
    assert node.create("b", gpus=1) == ("0",)


def test_a_paused_sandbox_keeps_its_gpu_also_after_a_crash_of_the_agent(node: Node) -> None:
    node.create("a", gpus=1)
    node.manager.pause(node.manager.settled("a", 1)).result(30)

    node.start()

    assert node.manager.find("a", 1).state is SandboxState.PAUSED
    assert node.create("b", gpus=1) == ("1",)


def test_a_restart_keeps_its_gpu_and_a_failed_create_gives_it_back(node: Node) -> None:
    node.create("a", gpus=1)
    node.create("b", gpus=1)
    assert node.create("b", 2, gpus=1) == ("1",)
    node.delete("a")
    node.controls.fail_creates.append(RuntimeFailure(ErrorCode.START_ERROR, "no"))
    with pytest.raises(NodeError):
        node.create("c", gpus=1)
    assert node.create("d", gpus=1) == ("0",)
