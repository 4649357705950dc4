"""What the SDK sends is what the service reads, with the same meaning."""

import json

import pytest

import ucloud_sandboxes_sdk as sdk
from gateway.wire import capacity, exec, resources, system
from gateway.wire import sandboxes as wire
from gateway.wire.base import WireModel
from ucloud_sandboxes_sdk import Image, SandboxFilesystemSpec, SandboxSecuritySpec, SandboxSpec
from ucloud_sandboxes_sdk.specs import argv, wire_fields

IMAGE = Image.from_registry("python:3.12-slim")


def read(payload: dict[str, object]) -> wire.SandboxSpec:
    return wire.SandboxSpec.model_validate_json(json.dumps(payload))


def test_default_spec_equals_the_service_defaults() -> None:
    assert read(SandboxSpec(id="a", image=IMAGE).to_dict()) == read({"id": "a", "image": "python:3.12-slim"})


def test_every_field_arrives() -> None:
    spec = SandboxSpec(
        id="a",
        image=Image.from_name("base"),
        command=("sleep", "1"),
        env={"A": "b"},
        working_dir="/w",
        memory_mb=64,
        cpus=0.5,
        disk_mb=128,
        network="bridge",
        ttl_seconds=60,
        security=SandboxSecuritySpec(user=None, cap_add=("NET_RAW",), pids_limit=None),
        filesystem=SandboxFilesystemSpec(workspace_path="/w", tmpfs_mb=8),
        labels={"k": "v"},
        parkable=True,
        idle_seconds=30,
        gpus=1,
        runtime="docker",
        isolation="runc",
    )
    got = read(spec.to_dict())
    assert (got.image, got.command, got.env, got.working_dir) == ("base", ["sleep", "1"], {"A": "b"}, "/w")
    assert (got.memory_mb, got.cpus, got.disk_mb, got.gpus) == (64, 0.5, 128, 1)
    assert (got.network, got.ttl_seconds, got.idle_seconds) == ("bridge", 60, 30)
    assert (got.runtime, got.isolation, got.labels, got.parkable) == ("docker", "runc", {"k": "v"}, True)
    assert (got.security.user, got.security.cap_add, got.security.pids_limit) == (None, ["NET_RAW"], None)
    assert (got.filesystem.workspace_path, got.filesystem.tmpfs_mb) == ("/w", 8)


def test_every_field_of_the_service_can_be_asked_for() -> None:
    # ssh and managed_process are accepted by the service for older programs only.
    assert set(SandboxSpec.__dataclass_fields__) == set(wire.SandboxSpec.model_fields) - {"ssh", "managed_process"}
    assert set(SandboxSecuritySpec.__dataclass_fields__) == set(wire.Security.model_fields)
    assert set(SandboxFilesystemSpec.__dataclass_fields__) == set(wire.Filesystem.model_fields)


def test_nested_objects_may_be_plain_dicts() -> None:
    spec = SandboxSpec(id="a", image=IMAGE, security={"user": "0:0"}, filesystem=None)
    assert read(spec.to_dict()).security.user == "0:0"


def test_keywords_send_only_what_was_given() -> None:
    assert wire_fields({"image": IMAGE, "cpus": None, "profile": "x"}) == {"image": "python:3.12-slim", "profile": "x"}


def test_image_must_be_an_image() -> None:
    with pytest.raises(TypeError, match=r"Image\.from_registry"):
        wire_fields({"image": "busybox"})
    for wrong in ("", " busybox"):
        with pytest.raises(ValueError, match="image reference"):
            Image.from_registry(wrong)


def test_bare_string_is_a_program_not_a_shell_line() -> None:
    assert argv("ls -l") == ["ls -l"]
    assert argv(("a", "b")) == ["a", "b"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sdk.SandboxSecurityInfo, wire.Security),
        (sdk.SandboxFilesystemInfo, wire.Filesystem),
        (sdk.SandboxInfo, wire.SandboxRecord),
        (sdk.SandboxResponse, wire.SandboxEnvelope),
        (sdk.SandboxListResponse, wire.SandboxList),
        (sdk.SandboxDeleteResponse, wire.DeleteAnswer),
        (sdk.SandboxExecSession, exec.ExecSession),
        (sdk.SandboxExecEvent, exec.ExecEvent),
        (sdk.SandboxExecResponse, exec.ExecEvents),
        (sdk.SandboxUploadResponse, exec.PutFileAnswer),
        (sdk.ServiceHealth, system.GatewayHealth),
        (sdk.ResourceAmounts, resources.Shape),
        (sdk.CapacityDemand, capacity.Demand),
        (sdk.WaitingSandboxInfo, capacity.WaitingSandbox),
        (sdk.PreparedUnitsInfo, capacity.PreparedCapacity),
        (sdk.PreparedBuildersInfo, capacity.PreparedBuilders),
        (sdk.PrepareCapacityResponse, capacity.PrepareAnswer),
        (sdk.PreparedCapacityResponse, capacity.PreparedList),
        (sdk.DeleteCapacityResponse, capacity.PrepareDeleted),
        (sdk.PrepareBuilderResponse, capacity.BuilderPrepareAnswer),
        (sdk.PreparedBuildersResponse, capacity.PreparedBuilderList),
        (sdk.DeleteBuilderResponse, capacity.BuilderPrepareDeleted),
    ],
)
def test_results_have_the_fields_of_the_wire(ours: type, theirs: type[WireModel]) -> None:
    assert set(ours.__annotations__) == set(theirs.model_fields)


def test_spec_of_a_record_has_the_fields_that_can_be_asked_for() -> None:
    assert set(sdk.SandboxSpecInfo.__annotations__) == set(SandboxSpec.__dataclass_fields__)
