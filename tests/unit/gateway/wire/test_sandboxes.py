"""What a spec says about itself."""

from typing import Any

import pytest

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
