"""A sandbox's life: create, its first process's end, generations, delete."""

import threading

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.runtime.base import EngineState, ExecCommand, Order
from tests.contract.runtime.lab import UNTIL_GO, Box, Lab, in_thread, read_until
from tests.contract.runtime.marks import also_on_runc


def next_generation(order: Order, number: int) -> Order:
    return Order(order.sandbox_id, number, f"{order.operation_id}-{number}", order.spec, order.spec_hash)


@also_on_runc
def test_create_answers_with_a_running_sandbox(lab: Lab) -> None:
    order = lab.order()
    found = lab.runtime.create(order)

    assert (found.order, found.state, found.isolation) == (order, EngineState.RUNNING, order.spec.isolation)
    assert found.image_digest is not None
    assert found.image_digest.startswith("sha256:")
    assert found.started_at is not None
    assert lab.found(order.sandbox_id) == found
    lab.runtime.delete(order.sandbox_id)


@also_on_runc
def test_create_again_finds_the_same_sandbox(lab: Lab) -> None:
    with lab.sandbox() as box:
        box.text("echo here >/tmp/mark")

        again = lab.runtime.create(box.order)

        assert again == lab.found(box.id)
        assert box.text("cat /tmp/mark") == "here"


def test_sixteen_creates_of_one_sandbox_make_one(lab: Lab) -> None:
    order = lab.order()
    answers = [future.result() for future in [in_thread(lab.runtime.create, order) for _ in range(16)]]

    assert all(answer == answers[0] for answer in answers)
    assert [found.order for found in lab.runtime.found() if found.order.sandbox_id == order.sandbox_id] == [order]
    lab.runtime.delete(order.sandbox_id)


@also_on_runc
@pytest.mark.parametrize("code", [0, 3])
def test_first_processs_end_is_reported_with_its_exit_code(lab: Lab, code: int) -> None:
    with lab.sandbox(command=["sh", "-c", f"{UNTIL_GO}; exit {code}"]) as box:
        ending = in_thread(lab.runtime.wait, box.id)
        box.go()
        death = ending.result()
        found = lab.found(box.id)

        assert (death.reason, death.exit_code) == (DeathReason.EXITED, code)
        assert found is not None
        assert (found.state, found.death) == (EngineState.DEAD, death)
        assert lab.runtime.wait(box.id) == death
        with pytest.raises(RuntimeFailure) as failure:
            box.exec("true")
        assert failure.value.code is ErrorCode.SANDBOX_NOT_RUNNING


@also_on_runc
def test_next_generation_keeps_the_workspace_and_nothing_else(lab: Lab) -> None:
    with lab.sandbox(security={"user": "0"}) as box:
        box.text("echo kept >/workspace/kept; echo gone >/data/gone; echo gone >/tmp/gone")
        found = lab.runtime.create(next_generation(box.order, 2))

        assert found.order.generation == 2
        assert box.text("cat /workspace/kept; ls /data /tmp") == "kept\n/data:\nreadme\n\n/tmp:"


@also_on_runc
def test_next_generation_that_can_never_start_leaves_the_workspace_and_nothing_else(lab: Lab) -> None:
    with lab.sandbox() as box:
        box.text("echo kept >/workspace/kept")
        ending = in_thread(lab.runtime.wait, box.id)
        with pytest.raises(RuntimeFailure) as failure:
            lab.runtime.create(lab.order(2, id=box.id, image="127.0.0.1:1/not/there:1"))
        assert failure.value.code is ErrorCode.IMAGE_ERROR
        ending.result()
        found = lab.found(box.id)
        assert found is not None
        assert found.state is EngineState.DEAD
        with pytest.raises(RuntimeFailure):
            lab.runtime.exec(box.id, ExecCommand(("true",)))

        lab.runtime.create(next_generation(box.order, 3))

        assert box.text("cat /workspace/kept") == "kept"


def test_next_generation_of_a_dead_sandbox(lab: Lab) -> None:
    with lab.sandbox(command=["sh", "-c", f"{UNTIL_GO}; rm /workspace/go; echo from one >/workspace/note"]) as box:
        box.go()
        lab.runtime.wait(box.id)

        assert lab.runtime.create(next_generation(box.order, 2)).state is EngineState.RUNNING
        assert box.text("cat /workspace/note") == "from one"


@also_on_runc
def test_lower_generation_is_refused(lab: Lab) -> None:
    order = lab.order(generation=5)
    lab.runtime.create(order)

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(next_generation(order, 4))

    assert failure.value.code is ErrorCode.CONFLICT
    assert lab.found(order.sandbox_id).order == order  # type: ignore[union-attr]
    lab.runtime.delete(order.sandbox_id)


@also_on_runc
@pytest.mark.parametrize("command", [["/not/there"], ["not-there"], ["/data/readme"]])
def test_first_process_that_cannot_start_is_a_start_error(lab: Lab, command: list[str]) -> None:
    order = lab.order(command=command)

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(order)

    assert (failure.value.code, failure.value.reason) == (ErrorCode.START_ERROR, DeathReason.START_ERROR)
    assert command[0] in failure.value.message
    assert not _running(lab, order)
    lab.runtime.delete(order.sandbox_id)


@also_on_runc
def test_missing_working_directory_is_a_start_error(lab: Lab) -> None:
    order = lab.order(working_dir="/not/there")

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(order)

    assert failure.value.code is ErrorCode.START_ERROR
    assert "/not/there" in failure.value.message
    lab.runtime.delete(order.sandbox_id)


@also_on_runc
def test_unknown_image_is_an_image_error(lab: Lab) -> None:
    order = lab.order(image="127.0.0.1:1/not/there:1")

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(order)

    assert (failure.value.code, failure.value.reason) == (ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR)
    assert "127.0.0.1:1/not/there:1" in failure.value.message
    lab.runtime.delete(order.sandbox_id)


@also_on_runc
def test_image_without_a_shell(lab: Lab) -> None:
    with lab.sandbox(image=lab.images.bare, command=[]) as box:
        busybox = lab.runtime.busybox(box.id)

        assert box.run(busybox, "echo", "works").stdout == b"works\n"
        assert box.run(busybox, "sh", "-c", f"echo x >{busybox}", user="0").code != 0
        assert box.run(busybox, "echo", "still works").stdout == b"still works\n"


@also_on_runc
def test_sandbox_of_an_image_without_a_command_stays_up(lab: Lab) -> None:
    with lab.sandbox(command=[]) as box:
        assert box.text("echo up") == "up"


@also_on_runc
def test_delete_twice_and_of_nothing(lab: Lab) -> None:
    box = lab.create()

    lab.runtime.delete(box.id)
    lab.runtime.delete(box.id)
    lab.runtime.delete("never-was-there")

    assert lab.found(box.id) is None


@also_on_runc
def test_delete_ends_the_wait(lab: Lab) -> None:
    box = lab.create()
    ending = in_thread(lab.runtime.wait, box.id)

    lab.runtime.delete(box.id)

    assert ending.result().reason is DeathReason.DELETED


@also_on_runc
def test_delete_of_a_dead_sandbox(lab: Lab) -> None:
    box = lab.create(command=["sh", "-c", UNTIL_GO])
    box.go()
    lab.runtime.wait(box.id)

    lab.runtime.delete(box.id)

    assert lab.found(box.id) is None


@also_on_runc
def test_delete_while_an_exec_runs(lab: Lab) -> None:
    box = lab.create()
    process = box.exec("sh", "-c", "echo ready; sleep 77200")
    read_until(process, b"ready\n")

    lab.runtime.delete(box.id)

    assert process.read() is None
    process.close()
    assert lab.found(box.id) is None


@also_on_runc
def test_delete_wins_over_a_create_in_flight(lab: Lab) -> None:
    for _ in range(5):
        order = lab.order()
        begun = threading.Event()

        def create(order: Order = order, begun: threading.Event = begun) -> object:
            begun.set()
            return lab.runtime.create(order)

        creating = in_thread(create)
        begun.wait()
        lab.runtime.delete(order.sandbox_id)
        error = creating.exception()

        # The create either lost while it ran, or had not begun when the delete came: then it may stand, alone.
        if error is None:
            lab.runtime.delete(order.sandbox_id)
        else:
            assert isinstance(error, RuntimeFailure)
            assert error.code is ErrorCode.CONFLICT
        assert lab.found(order.sandbox_id) is None


@also_on_runc
def test_id_can_be_used_again_after_delete(lab: Lab) -> None:
    with lab.sandbox() as box:
        box.text("echo old >/workspace/old")
        lab.runtime.delete(box.id)

        lab.runtime.create(next_generation(box.order, 2))

        assert box.text("ls /workspace") == ""


def _running(lab: Lab, order: Order) -> bool:
    found = lab.found(order.sandbox_id)
    return found is not None and found.state is not EngineState.DEAD


@also_on_runc
def test_calls_on_a_sandbox_that_is_not_there(lab: Lab) -> None:
    missing = Box(lab, lab.order())
    for call in (lab.runtime.pause, lab.runtime.resume, lab.runtime.usage):
        with pytest.raises(RuntimeFailure) as failure:
            call(missing.id)
        assert failure.value.code in (ErrorCode.SANDBOX_NOT_RUNNING, ErrorCode.SANDBOX_NOT_FOUND)
