"""The life of an incarnation, over an engine that does as a test says."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.runtime.base import EngineState, Found, Order
from node_agent.runtime.incarnation import EngineSteps, Incarnations
from node_agent.runtime.locks import SandboxLocks, StartAttempt
from node_agent.runtime.record import IncarnationRecord, RecordStore


class TestPart(BaseModel):
    """What the engine of these tests notes down: its network."""

    __test__ = False
    network: str | None = None


Record = IncarnationRecord[TestPart]


@dataclass
class Engine(EngineSteps[TestPart, str]):
    """Notes the calls, and does what the test wants at each step."""

    records: RecordStore[TestPart]
    calls: list[str] = field(default_factory=list)
    on_prepare: Callable[[], None] = lambda: None
    on_bring_up: Callable[[StartAttempt], None] = lambda attempt: None
    on_interrupt: Callable[[], None] = lambda: None

    def prepare(self, order: Order) -> str:
        self.calls.append("prepare")
        self.on_prepare()
        return "image"

    def plan(self, record: Record, prepared: str) -> Record:
        return record.but(image_digest=prepared).with_part(network=f"net-{record.generation}")

    def bring_up(self, record: Record, prepared: str, attempt: StartAttempt) -> Record:
        self.calls.append("bring up")
        directory = self.records.directory(record.sandbox_id)
        (directory / "volume.ext4").touch()
        (directory / f"file-of-{record.generation}").touch()
        self.on_bring_up(attempt)
        return self.records.save(record.but(state=EngineState.RUNNING))

    def take_down(self, sandbox_id: str, record: Record | None) -> None:
        self.calls.append(f"take down {record.part.network if record else None}")

    def interrupt(self, sandbox_id: str) -> None:
        self.calls.append("interrupt")
        self.on_interrupt()

    def found(self, record: Record) -> Found:
        return Found(record.order, record.state, "gvisor", record.image_digest, None, record.death)


@dataclass
class World:
    """One engine with its records, and the skeleton over both."""

    engine: Engine
    records: RecordStore[TestPart]
    incarnations: Incarnations[TestPart, str]

    def create(self, generation: int = 1) -> Found:
        spec = SandboxSpec.model_validate({"id": "a", "image": "i"})
        return self.incarnations.create(Order("a", generation, f"op-{generation}", spec, spec.sha256()))

    def fails_to_create(self, generation: int = 1) -> RuntimeFailure:
        with pytest.raises(RuntimeFailure) as failure:
            self.create(generation)
        return failure.value

    def record(self) -> Record:
        record = self.records.load("a")
        assert record is not None
        return record

    def files(self) -> set[str]:
        directory = self.records.directory("a")
        return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


@pytest.fixture
def world(tmp_path: Path) -> World:
    records = RecordStore(tmp_path / "sandboxes", TestPart)
    engine = Engine(records)
    return World(engine, records, Incarnations(records, SandboxLocks(), engine))


def fail(code: ErrorCode, reason: DeathReason | None = None) -> Callable[..., None]:
    def raise_it(*_: object) -> None:
        raise RuntimeFailure(code, "as the test says", reason=reason)

    return raise_it


def test_create_writes_its_intent_before_the_engine_is_touched(world: World) -> None:
    seen: list[Record] = []
    world.engine.on_bring_up = lambda attempt: seen.append(world.record())

    found = world.create()

    assert [(record.state, record.image_digest, record.part.network) for record in seen] == [
        (EngineState.CREATING, "image", "net-1")
    ]
    assert found.state is EngineState.RUNNING


def test_order_that_was_carried_out_is_answered_with_what_is_there(world: World) -> None:
    first = world.create()
    world.engine.calls.clear()

    assert world.create() == first
    assert world.engine.calls == []


def test_order_that_a_crash_cut_short_is_carried_out_afresh(world: World) -> None:
    world.create()
    world.records.save(world.record().but(state=EngineState.CREATING))
    (world.records.directory("a") / "trace").touch()

    assert world.create().state is EngineState.RUNNING
    assert "trace" not in world.files()


def test_older_generation_is_refused(world: World) -> None:
    world.create(generation=2)

    assert world.fails_to_create(generation=1).code is ErrorCode.CONFLICT
    assert world.record().generation == 2


def test_newer_generation_takes_the_older_down_and_keeps_its_workspace(world: World) -> None:
    world.create(generation=1)

    world.create(generation=2)

    assert "take down net-1" in world.engine.calls
    assert {"volume.ext4", "file-of-1", "file-of-2"} <= world.files()
    assert (world.record().generation, world.record().inherited) == (2, True)


@pytest.mark.parametrize("error", [OSError(5, "no"), RuntimeFailure(ErrorCode.START_ERROR, "no")])
def test_failed_first_start_leaves_nothing(world: World, error: Exception) -> None:
    def raise_it(attempt: StartAttempt) -> None:
        raise error

    world.engine.on_bring_up = raise_it

    failure = world.fails_to_create()

    assert failure.code is (ErrorCode.INTERNAL if isinstance(error, OSError) else ErrorCode.START_ERROR)
    assert world.engine.calls[-1] == "take down net-1"
    assert world.records.ids() == []


def test_full_disk_has_its_own_code_and_reason(world: World) -> None:
    def raise_it(attempt: StartAttempt) -> None:
        raise OSError(28, "No space left on device")

    world.engine.on_bring_up = raise_it

    failure = world.fails_to_create()

    assert (failure.code, failure.reason) == (ErrorCode.DISK_FULL, DeathReason.DISK_FULL)


def test_failed_restart_leaves_the_workspace_under_a_record_of_its_end(world: World) -> None:
    world.create(generation=1)
    world.engine.on_bring_up = fail(ErrorCode.START_ERROR, DeathReason.OOM)

    world.fails_to_create(generation=2)

    record = world.record()
    assert (record.generation, record.state, record.part.network) == (2, EngineState.DEAD, None)
    assert record.death is not None
    assert record.death.reason is DeathReason.OOM
    assert "file-of-1" in world.files()


def test_start_after_a_failed_restart_takes_over_the_workspace(world: World) -> None:
    world.create(generation=1)
    world.engine.on_bring_up = fail(ErrorCode.START_ERROR)
    world.fails_to_create(generation=2)
    world.engine.on_bring_up = lambda attempt: None

    world.create(generation=3)

    assert "file-of-1" in world.files()


def test_restart_that_can_never_come_ends_the_generation_that_runs(world: World) -> None:
    world.create(generation=1)
    world.engine.on_prepare = fail(ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR)

    assert world.fails_to_create(generation=2).code is ErrorCode.IMAGE_ERROR

    assert world.record().state is EngineState.DEAD
    assert "take down net-1" in world.engine.calls
    assert "file-of-1" in world.files()


def test_restart_that_cannot_come_now_leaves_the_generation_that_runs(world: World) -> None:
    world.create(generation=1)
    world.engine.on_prepare = fail(ErrorCode.BUSY)

    world.fails_to_create(generation=2)

    assert (world.record().generation, world.record().state) == (1, EngineState.RUNNING)


@pytest.mark.parametrize("step", ["prepare", "bring up"])
def test_delete_wins_over_a_create_in_flight(world: World, step: str) -> None:
    reached, gone = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        assert gone.wait(10)

    def wait_under_the_lock(attempt: StartAttempt) -> None:
        with attempt.interruptible(gone.set):
            wait()
        raise RuntimeFailure(ErrorCode.START_ERROR, "its kernel was killed")

    if step == "prepare":
        world.engine.on_prepare = wait
        world.engine.on_interrupt = gone.set
    else:
        world.engine.on_bring_up = wait_under_the_lock
    with ThreadPoolExecutor() as threads:
        creating = threads.submit(world.create)
        assert reached.wait(10)
        world.incarnations.delete("a")
        error = creating.exception(10)

    assert isinstance(error, RuntimeFailure)
    assert error.code is ErrorCode.CONFLICT
    assert world.records.ids() == []


def test_delete_of_a_sandbox_that_is_half_gone_is_finished(world: World) -> None:
    world.create()
    world.records.mark_deleting("a")

    world.incarnations.delete("a")
    world.incarnations.delete("a")

    assert "take down net-1" in world.engine.calls
    assert world.records.ids() == []


def test_id_can_be_used_again_after_a_delete_that_a_crash_cut_short(world: World) -> None:
    world.create(generation=1)
    world.records.mark_deleting("a")

    world.create(generation=2)

    assert "file-of-1" not in world.files()
    assert not world.record().inherited
