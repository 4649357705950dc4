"""What a spec says about itself."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.wire.sandboxes import SandboxSpec


def spec(**fields: Any) -> SandboxSpec:
    return SandboxSpec.model_validate({"id": "one", "image": "i"} | fields)


@pytest.mark.parametrize(
    ("isolation", "added", "reach_the_host"),
    [
        ("runc", ["CAP_SYS_ADMIN", "NET_BIND_SERVICE", "MKNOD"], ["MKNOD", "SYS_ADMIN"]),
        ("runc", ["ALL"], ["ALL"]),
        ("runc", ["CAP_ALL"], ["ALL"]),
        ("runc", ["CHOWN", "SETUID"], []),
        ("gvisor", ["SYS_ADMIN", "ALL"], []),
    ],
)
def test_capabilities_reach_the_host_only_where_its_kernel_is_shared(
    isolation: str, added: list[str], reach_the_host: list[str]
) -> None:
    assert spec(isolation=isolation, security={"cap_add": added}).host_level_capabilities == reach_the_host


@pytest.mark.parametrize(
    "path",
    ["/", "/./", "//", "/proc", "/proc/./", "/proc/self", "//proc/x", "/sys/fs", "/dev/shm", "/x/../etc", "/tmp/."],
)
def test_a_workspace_never_hides_what_the_engine_mounts(path: str) -> None:
    with pytest.raises(ValidationError):
        spec(filesystem={"workspace_path": path})


@pytest.mark.parametrize(
    ("path", "plain"),
    [("/work/", "/work"), ("//work/./a", "/work/a"), ("/tmp/work", "/tmp/work"), ("/process", "/process")],
)
def test_a_workspace_has_one_name(path: str, plain: str) -> None:
    assert spec(filesystem={"workspace_path": path}).filesystem.workspace_path == plain


def test_setuid_programs_need_a_kernel_that_lets_them() -> None:
    asked = {"security": {"no_new_privileges": False}}

    assert not spec(isolation="runc", **asked).security.no_new_privileges
    with pytest.raises(ValidationError):
        spec(**asked)


GPU = "GPU-8f2b1c9e-0d5a-4b7f-9c3e-1a2b3c4d5e6f"


@pytest.mark.parametrize(
    ("asked", "kept", "count"),
    [
        (3, 3, 3),
        ("all", "all", 1),
        ("device=all", "all", 1),
        ("device=0", "device=0", 1),
        ("device=0,11", "device=0,11", 2),
        ("device=0:0,0:1", "device=0:0,0:1", 2),
        (f"device={GPU},1,MIG{GPU[3:]}", f"device={GPU},1,MIG{GPU[3:]}", 3),
    ],
)
def test_gpus_are_counted_by_what_they_give(asked: int | str, kept: int | str, count: int) -> None:
    made = spec(gpus=asked)
    assert (made.gpus, made.gpu_count, made.shape.gpus) == (kept, count, count)


@pytest.mark.parametrize(
    "asked",
    [
        *("", "device=", "device=,", "device=0,", "device=,0", "device=-1", "device=00", "device=0,0", "device=100"),
        *("device=ALL", "device=0,all", "device=none", "device=void", "device=GPU-", "device=GPU-1", "device=0:0:0"),
        *("All", "none", "2", "count=2", "device=0,capabilities=utility", '"device=0"', "device=0\n", "all\n", -1, 65),
        *(f"device={GPU},{GPU}", f"device={GPU.lower()}", "device=" + ",".join(map(str, range(65)))),
    ],
)
def test_gpus_that_are_none_or_the_same_twice_are_refused(asked: int | str) -> None:
    with pytest.raises(ValidationError):
        spec(gpus=asked)
