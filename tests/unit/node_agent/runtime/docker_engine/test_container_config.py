"""The container that Docker is asked for, decided from an order."""

import json
from pathlib import Path
from typing import Any

import pytest
from docker import APIClient

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from node_agent.errors import RuntimeFailure
from node_agent.host.accounts import Account
from node_agent.host.images import EngineImage
from node_agent.runtime.base import Order
from node_agent.runtime.docker_engine import container_config, probe
from tests.unit.node_agent.runtime.docker_engine.fake_daemon import http_daemon

IMAGE = EngineImage("sha256:1", "sha256:2", {}, (), ("default",), "", "/")
PLACE = container_config.HostParts(
    busybox=Path("/b"),
    workspace=Path("/w"),
    stdout=Path("/o"),
    stderr=Path("/e"),
    volumes={},
    etc={},
    network="none",
    account=Account(1000, 1000),
)
NAMES = container_config.ContainerNames(tag="01234567", prefix="mark", cgroup_parent="/sandbox-docker-01234567")


def body(image: EngineImage = IMAGE, **fields: Any) -> dict[str, Any]:
    spec = SandboxSpec.model_validate({"id": "one", "image": "i"} | fields)
    return container_config.container(Order("one", 3, "op", spec, spec.sha256()), image, PLACE, NAMES)


def test_safe_by_default() -> None:
    host = body()["HostConfig"]

    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == []
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["NetworkMode"] == "none"
    assert host["Runtime"] == "runsc"
    assert body()["User"] == "1000:1000"


@pytest.mark.parametrize("cap_drop", [[], ["ALL"]])
def test_a_container_that_shares_the_hosts_kernel_never_makes_device_nodes(cap_drop: list[str]) -> None:
    host = body(isolation="runc", security={"cap_drop": cap_drop})["HostConfig"]

    assert host["CapDrop"] == [*cap_drop, "MKNOD"]


def test_limits_reach_the_engine() -> None:
    host = body(cpus=1.5, memory_mb=300, security={"pids_limit": 9}, isolation="runc")["HostConfig"]

    assert (host["CpuQuota"], host["CpuPeriod"]) == (150_000, 100_000)
    assert (host["CpuShares"], host["BlkioWeight"]) == (1536, 150)
    assert host["Memory"] == host["MemorySwap"] == 300 * 1024 * 1024
    assert host["PidsLimit"] == 9
    assert host["Runtime"] == "runc"


def test_under_gvisor_processes_are_bounded_inside_and_only_backed_by_the_host() -> None:
    host = body(security={"pids_limit": 9})["HostConfig"]

    assert host["Ulimits"] == [{"Name": "nproc", "Soft": 9, "Hard": 9}]
    assert 9 < host["PidsLimit"] < 1000


def test_labels_hold_no_secret() -> None:
    made = body(env={"TOKEN": "s3cret"}, labels={"team": "s3cret"}, command=["run", "s3cret"])

    assert "s3cret" not in json.dumps(made["Labels"])
    assert made["Labels"][container_config.LABEL] == "01234567"
    assert made["Labels"][container_config.LABEL_GENERATION] == "3"


@pytest.mark.parametrize(
    ("image", "command", "argv"),
    [
        (IMAGE, ["mine", "x"], ["mine", "x"]),
        (IMAGE, [], ["default"]),
        (EngineImage("i", "d", {}, ("enter",), ("default",), "", ""), [], ["enter", "default"]),
        (EngineImage("i", "d", {}, ("enter",), ("default",), "", ""), ["mine"], ["enter", "mine"]),
        (EngineImage("i", "d", {}, (), (), "", ""), [], [container_config.BUSYBOX, "sleep", "2147483647"]),
    ],
)
def test_first_process(image: EngineImage, command: list[str], argv: list[str]) -> None:
    assert body(image, command=command)["Entrypoint"][-len(argv) :] == argv


@pytest.mark.parametrize(
    ("asked", "image_dir", "expected"),
    [(None, "", "/workspace"), (None, "/", "/workspace"), (None, "/app", "/app"), ("/data", "/app", "/data")],
)
def test_working_directory(asked: str | None, image_dir: str, expected: str) -> None:
    spec = SandboxSpec.model_validate({"id": "one", "image": "i", "working_dir": asked})

    assert container_config.working_directory(spec, EngineImage("i", "d", {}, (), (), "", image_dir)) == expected


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, "/workspace"), ("sub/dir", "/workspace/sub/dir"), ("/data", "/data")]
)
def test_an_execs_directory_is_relative_to_the_sandboxs(asked: str | None, expected: str) -> None:
    assert container_config.resolve_directory("/workspace", asked) == expected


def test_gpus_are_asked_for_by_name() -> None:
    spec = SandboxSpec.model_validate({"id": "one", "image": "i", "gpus": 2})
    order = Order("one", 3, "op", spec, spec.sha256(), ("1", "3"))

    (request,) = container_config.container(order, IMAGE, PLACE, NAMES)["HostConfig"]["DeviceRequests"]

    assert (request["Count"], request["DeviceIDs"], request["Capabilities"]) == (0, ["1", "3"], [["gpu"]])


def test_the_variables_of_image_and_client_give_no_other_gpus() -> None:
    fields = {"id": "one", "image": "i", "gpus": 1, "env": {"NVIDIA_VISIBLE_DEVICES": "all"}}
    spec = SandboxSpec.model_validate(fields)
    order = Order("one", 3, "op", spec, spec.sha256(), ("1",))

    assert container_config.container(order, IMAGE, PLACE, NAMES)["Env"] == ["NVIDIA_VISIBLE_DEVICES=1"]


def test_no_gpus_no_request() -> None:
    assert body()["HostConfig"]["DeviceRequests"] == []


def test_more_gpus_than_there_are_is_refused() -> None:
    spec = SandboxSpec.model_validate({"id": "one", "image": "i", "gpus": 2})

    probe.check_gpus(spec, 2)
    with pytest.raises(RuntimeFailure) as failure:
        probe.check_gpus(spec, 0)

    assert failure.value.code is ErrorCode.CAPACITY
    assert "gpus=2" in failure.value.message


def test_a_host_has_the_gpus_of_its_driver_where_docker_can_pass_them_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit, proc = tmp_path / "bin", tmp_path / "proc"
    for number in range(2):
        (proc / f"driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True)
    toolkit.mkdir()
    monkeypatch.setenv("PATH", str(toolkit))
    assert probe.count_usable_gpus(proc) == 0
    hook = toolkit / "nvidia-container-runtime-hook"
    hook.touch(0o755)
    assert probe.count_usable_gpus(proc) == 2
    assert probe.count_usable_gpus(tmp_path / "no driver") == 0


def test_gpus_reach_the_daemon(tmp_path: Path) -> None:
    spec = SandboxSpec.model_validate({"id": "one", "image": "i", "gpus": 2})
    order = Order("one", 3, "op", spec, spec.sha256(), ("1", "3"))
    sent_body = container_config.container(order, IMAGE, PLACE, NAMES)
    with http_daemon(tmp_path / "docker.sock", {"Id": "made"}) as (url, received):
        client = APIClient(base_url=url, version="1.41")
        made = client.create_container_from_config(sent_body, "one")
        client.close()

    assert made["Id"] == "made"
    path, sent = received.get(timeout=10)
    assert path.startswith("/v1.41/containers/create")
    (request,) = sent["HostConfig"]["DeviceRequests"]
    assert (request["DeviceIDs"], request["Capabilities"]) == (["1", "3"], [["gpu"]])
