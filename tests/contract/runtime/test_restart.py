"""A restarted agent: what a second instance over the same root finds, adopts, and sweeps."""

import contextlib
import json

import pytest

from gateway.wire.states import DeathReason
from gateway.wire.tenants import own_id, tenant_of
from node_agent.runtime.base import EngineState, Order
from tests.contract.runtime.lab import UNTIL_GO, Box, Lab, in_thread, read_until
from tests.contract.runtime.marks import also_on_runc


@also_on_runc
def test_running_sandbox_is_adopted(lab: Lab) -> None:
    with lab.sandbox(labels={"team": "a"}, env={"SECRET": "s"}) as box:
        box.text("echo before >/tmp/mark")
        restarted = lab.reopen()
        after = Box(_with(lab, restarted), box.order)

        assert lab.found(box.id, restarted) == lab.found(box.id)
        assert lab.found(box.id, restarted).order == box.order  # type: ignore[union-attr]
        assert after.text("cat /tmp/mark; echo $SECRET") == "before\ns"

        ending = in_thread(restarted.wait, box.id)
        restarted.pause(box.id)
        restarted.resume(box.id)
        restarted.delete(box.id)
        assert ending.result().reason is DeathReason.DELETED


@also_on_runc
@pytest.mark.parametrize("sandbox_id", ["acme..box-1", f"{'t' * 32}..{'B' * 64}"], ids=["short", "longest"])
def test_sandbox_of_a_tenant_lives_and_is_adopted_under_its_qualified_id(lab: Lab, sandbox_id: str) -> None:
    spec = lab.spec(id=own_id(sandbox_id))
    order = Order(sandbox_id, 1, "op", spec, spec.sha256())
    lab.made.append(sandbox_id)
    lab.runtime.sweep()  # what served the sandboxes of earlier tests
    lab.runtime.create(order)
    assert tenant_of(sandbox_id) not in Box(lab, order).text("hostname; echo $HOSTNAME")
    restarted = lab.reopen()
    after = Box(_with(lab, restarted), order)

    assert restarted.sweep() == []
    assert lab.found(sandbox_id, restarted).order == order  # type: ignore[union-attr]
    restarted.pause(sandbox_id)
    restarted.resume(sandbox_id)
    assert after.text("echo up") == "up"
    restarted.delete(sandbox_id)
    assert lab.found(sandbox_id, restarted) is None


@also_on_runc
def test_sandbox_that_died_meanwhile_is_reported_with_its_reason(lab: Lab) -> None:
    with lab.sandbox(command=["sh", "-c", f"{UNTIL_GO}; exit 9"]) as box:
        ending = in_thread(lab.runtime.wait, box.id)
        box.go()
        ending.result()

        found = lab.found(box.id, lab.reopen())

        assert found is not None
        assert found.state is EngineState.DEAD
        assert found.death is not None
        assert (found.death.reason, found.death.exit_code) == (DeathReason.EXITED, 9)


@also_on_runc
def test_sweep_leaves_what_is_owned(lab: Lab) -> None:
    with lab.sandbox() as box, contextlib.closing(box.exec("sh", "-c", "echo ready; cat", stdin=True)) as process:
        read_until(process, b"ready\n")
        restarted = lab.reopen()
        restarted.found()

        restarted.sweep()

        process.write(b"still here\n")
        assert read_until(process, b"still here\n") == b"still here\n"
        assert box.text("echo up") == "up"
        process.kill()


@also_on_runc
def test_create_that_a_crash_cut_short_begins_afresh(lab: Lab) -> None:
    """The first process had begun, but nobody had written so: its traces must not meet the second try."""
    with lab.sandbox() as box:
        box.text("touch /workspace/first-try")
        record = next(lab.root.rglob(f"{box.id}/record.json"))
        record.write_text(json.dumps(json.loads(record.read_text()) | {"state": "creating"}))
        restarted = lab.reopen()
        restarted.create(box.order)

        assert Box(_with(lab, restarted), box.order).text("ls /workspace") == ""


def _with(lab: Lab, runtime: object) -> Lab:
    return Lab(runtime, lab.reopen, lab.root, lab.tag, lab.images, lab.fields)  # type: ignore[arg-type]
