"""What holds on Docker alone: its labels, its own volumes, its debris, and an engine that keeps its own firewall."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.runtime.docker_engine import container_config
from tests.contract.runtime.lab import UNTIL_GO, Lab, in_thread, read_all, read_until
from tests.contract.runtime.marks import docker_only

LINUX = tuple(map(int, os.uname().release.split(".")[:2]))


@docker_only
def test_labels_and_command_hold_no_secret(lab: Lab, client: Any) -> None:
    with lab.sandbox(env={"TOKEN": "s3cret"}) as box:
        box.run("true", env={"MORE": "s3cret"})
        inspected = client.inspect_container(box.container(client))

    del inspected["Config"]["Env"]
    assert "s3cret" not in json.dumps(inspected)


@docker_only
def test_volumes_of_an_image_are_bounded_too(lab: Lab, client: Any) -> None:
    made = client.create_container(lab.images.busybox, command=["true"])
    client.commit(made["Id"], repository="sandbox-test/volume", tag="1", changes="VOLUME /store")
    client.remove_container(made["Id"], v=True)

    with lab.sandbox(image="sandbox-test/volume:1", disk_mb=32) as box:
        filled = box.sh("dd if=/dev/zero of=/store/big bs=1M count=100")
        volumes = client.volumes()["Volumes"]

    assert b"No space left on device" in filled.stderr
    assert not volumes


@docker_only
def test_gpus_on_a_host_without_are_a_capacity_error_before_anything_is_made(lab: Lab, client: Any) -> None:
    order = lab.order(gpus=1)

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(order)

    assert failure.value.code is ErrorCode.CAPACITY
    assert lab.found(order.sandbox_id) is None
    assert client.containers(all=True, filters={"label": f"{container_config.LABEL}={lab.tag}"}) == []


@docker_only
def test_sweep_removes_debris_of_its_tag_and_nothing_else(lab: Lab, client: Any) -> None:
    def plant(tag: str) -> tuple[str, str]:
        labels = {container_config.LABEL: tag, container_config.LABEL_ID: "debris"}
        made = client.create_container(lab.images.busybox, command=["sleep", "99"], labels=labels)
        client.start(made["Id"])
        name = f"sandbox-{tag}-debris-1"
        client.create_network(name, driver="bridge", labels={container_config.LABEL: tag})
        return made["Id"], name

    own_container, own_network = plant(lab.tag)
    foreign_container, foreign_network = plant("ffffffff")
    remains = lab.root / "docker" / "sandboxes" / "remains"
    (remains / "volume").mkdir(parents=True)
    mounts.mount("tmpfs", remains / "volume", "tmpfs", 0, "size=1m")
    try:
        with lab.sandbox() as box:
            swept = lab.runtime.sweep()
            assert box.text("echo up") == "up"
        left = {entry["Id"] for entry in client.containers(all=True)}
        networks = {entry["Name"] for entry in client.networks()}

        assert len(swept) == 3
        assert own_container not in left
        assert foreign_container in left
        assert own_network not in networks
        assert foreign_network in networks
        assert not remains.exists()
    finally:
        client.remove_container(foreign_container, force=True)
        client.remove_network(foreign_network)


@docker_only
def test_sandbox_whose_container_somebody_removed_is_dead_and_can_be_deleted(lab: Lab, client: Any) -> None:
    box = lab.create()
    client.remove_container(box.container(client), force=True)

    found = lab.found(box.id)
    assert found is not None
    assert found.death is not None
    assert found.death.reason == "evicted"
    lab.runtime.delete(box.id)
    assert [path for path in mounts.mounted_below(lab.root) if box.id in str(path)] == []


@docker_only
@pytest.mark.skipif(LINUX < (6, 15), reason="an older kernel does not tell how a process ended that is nobody's child")
def test_killed_kernel_of_a_sandbox_is_told_from_a_first_process_that_is_killed_inside(lab: Lab, client: Any) -> None:
    with lab.sandbox() as killed, lab.sandbox(security={"user": "0:0"}) as inside:
        ends = [in_thread(lab.runtime.wait, box.id) for box in (killed, inside)]
        pid = client.inspect_container(killed.container(client))["State"]["Pid"]
        _until_watched(pid)
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(RuntimeFailure):
            inside.sh("kill -9 1")

        deaths = [end.result(60) for end in ends]

        assert [(death.reason, death.exit_code) for death in deaths] == [("evicted", 137), ("exited", 137)]
        assert [lab.found(box.id).death.reason for box in (killed, inside)] == ["evicted", "exited"]  # type: ignore[union-attr]
        with pytest.raises(RuntimeFailure) as refused:
            killed.run("true")
        assert refused.value.code is ErrorCode.SANDBOX_NOT_RUNNING


def _until_watched(pid: int) -> None:
    """Wait until this process holds a handle of that one."""
    while True:
        for entry in Path("/proc/self/fdinfo").iterdir():
            with contextlib.suppress(OSError):
                if f"Pid:\t{pid}\n" in entry.read_text():
                    return


@docker_only
def test_an_exec_ends_when_its_sandbox_dies_by_itself(lab: Lab) -> None:
    with (
        lab.sandbox(command=["sh", "-c", UNTIL_GO]) as box,
        contextlib.closing(box.exec("sh", "-c", "echo ready; sleep 77400")) as process,
    ):
        read_until(process, b"ready\n")
        box.go()
        assert read_all(process) == (b"", b"")
        with pytest.raises(RuntimeFailure) as failure:
            process.wait()

    assert failure.value.code is ErrorCode.EXEC_LOST


@docker_only
def test_runc_is_not_offered_without_user_namespaces_unless_the_operator_says_so(lab: Lab, client: Any) -> None:
    assert "name=userns" not in client.info()["SecurityOptions"]
    facts = lab.runtime.probe()
    order = lab.order(isolation="runc")

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(order)

    assert failure.value.code is ErrorCode.UNSUPPORTED
    assert facts.isolations == ("gvisor",)
    assert any("user namespaces" in note for note in facts.notes)


@docker_only
@pytest.mark.parametrize("capability", ["DAC_READ_SEARCH", "CAP_SYS_ADMIN", "ALL"])
def test_capabilities_of_the_host_are_refused_before_anything_is_made(lab: Lab, client: Any, capability: str) -> None:
    order = lab.order(isolation="runc", security={"user": "0", "cap_add": [capability, "NET_BIND_SERVICE"]})

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(order)

    assert failure.value.code is ErrorCode.UNSUPPORTED
    assert lab.found(order.sandbox_id) is None
    assert client.containers(all=True, filters={"label": f"{container_config.LABEL}={lab.tag}"}) == []
