"""Every door by which privileges or size come in is checked; a refusal says what is allowed, and where that is set."""

import pytest

from gateway.core.policy import Policies, Policy
from gateway.core.policy_check import check, check_exec, check_prepare, host_level, may_be_root
from gateway.wire.capacity import PrepareRequest
from gateway.wire.sandboxes import SandboxSpec

DEFAULT = Policy()
RUNC = Policy(isolations=("gvisor", "runc"))


def spec(**fields: object) -> SandboxSpec:
    return SandboxSpec.model_validate({"id": "a", "image": "debian", **fields})


def refused(asked: SandboxSpec, policy: Policy) -> list[str]:
    return [found.field for found in check(asked, policy)]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, []),
        ({"security": {"user": "0:0"}}, []),
        ({"security": {"user": None}}, []),
        ({"network": "bridge", "gpus": 2, "runtime": "docker"}, []),
        ({"isolation": "runc"}, ["isolation"]),
        ({"security": {"cap_add": ["NET_ADMIN"]}}, ["security.cap_add"]),
        ({"security": {"cap_add": ["CAP_KILL"]}}, ["security.cap_add"]),
        ({"security": {"cap_add": ["ALL"]}}, ["security.cap_add"]),
        ({"security": {"cap_drop": []}}, ["security.cap_drop"]),
        ({"security": {"cap_drop": ["CHOWN"]}}, ["security.cap_drop"]),
        ({"security": {"cap_drop": ["CAP_ALL"]}}, []),
        ({"image": "127.0.0.1:5000/x"}, ["image"]),
        ({"image": "localhost/x"}, ["image"]),
        ({"image": "10.0.0.1/x"}, ["image"]),
        ({"image": "metadata.google.internal/x"}, ["image"]),
    ],
)
def test_the_defaults_let_an_agent_work_and_give_no_privileges(fields: dict[str, object], named: list[str]) -> None:
    assert refused(spec(**fields), DEFAULT) == named


@pytest.mark.parametrize(
    ("security", "named"),
    [
        ({}, []),
        ({"user": "1000"}, []),
        ({"user": "1000:0"}, []),
        ({"user": "0"}, ["security.user"]),
        ({"user": "00:1000"}, ["security.user"]),
        ({"user": "root"}, ["security.user"]),
        ({"user": "toor"}, ["security.user"]),
        ({"user": "4294967296"}, ["security.user"]),
        ({"user": None}, ["security.user"]),
        ({"no_new_privileges": False}, ["security.no_new_privileges"]),
    ],
)
def test_root_with_runc_is_refused_however_it_comes_about(security: dict[str, object], named: list[str]) -> None:
    asked = spec(isolation="runc", security=security)
    assert refused(asked, RUNC) == named
    assert refused(asked, Policy(isolations=("runc",), root=("runc",))) == []


@pytest.mark.parametrize(
    ("user", "maybe"), [("1", False), ("1000:1000", False), ("0", True), ("0x10", True), ("a", True), (None, True)]
)
def test_only_a_number_is_surely_not_root(user: str | None, maybe: bool) -> None:
    assert may_be_root(user) is maybe


def test_the_user_of_an_exec_is_checked_as_that_of_a_sandbox() -> None:
    assert check_exec(None, "runc", RUNC) == check_exec("1000", "runc", RUNC) == check_exec("0", "gvisor", RUNC) == []
    assert [found.field for found in check_exec("root", "runc", RUNC)] == ["user"]


def test_capabilities_that_reach_the_host_are_refused_whatever_the_policy_says() -> None:
    everything = Policy(isolations=("gvisor", "runc"), capabilities=("ALL",), root=("gvisor", "runc"))
    asked = spec(isolation="runc", security={"cap_add": ["CAP_SYS_ADMIN", "NET_RAW"]})
    assert refused(asked, everything) == ["security.cap_add"]
    assert [found.value for found in host_level(asked)] == ["SYS_ADMIN"]
    assert refused(spec(isolation="gvisor", security={"cap_add": ["SYS_ADMIN"]}), everything) == []


def test_what_dropping_leaves_counts_as_added() -> None:
    policy = Policy(capabilities=("CAP_CHOWN", "KILL"))
    assert refused(spec(security={"cap_add": ["KILL"]}), policy) == []
    dropped = [
        *("DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP"),
        *("SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE"),
    ]
    assert refused(spec(security={"cap_drop": dropped}), policy) == []
    assert check(spec(security={"cap_drop": dropped[1:]}), policy)[0].value == "keeping DAC_OVERRIDE"


@pytest.mark.parametrize(
    ("policy", "fields", "named"),
    [
        ({"networks": ["none"]}, {"network": "bridge"}, ["network"]),
        ({"runtimes": ["runsc"]}, {"runtime": "docker"}, ["runtime"]),
        ({"runtimes": ["runsc"]}, {"gpus": 1}, ["runtime"]),
        ({"gpus": 0}, {"gpus": 1}, ["gpus"]),
        ({"gpus": 8}, {"gpus": "all"}, ["gpus"]),
        ({"gpus": 8}, {"gpus": "device=all"}, ["gpus"]),
        ({"gpus": 1}, {"gpus": "device=0,1"}, ["gpus"]),
        ({"max_cpus": 2}, {"cpus": 2.5}, ["cpus"]),
        ({"max_memory_mb": 512}, {}, ["memory_mb"]),
        ({"max_disk_mb": 4096}, {}, []),
        ({"max_ttl_seconds": 60}, {"ttl_seconds": 61}, ["ttl_seconds"]),
        ({"max_ttl_seconds": 60}, {}, []),
        ({"max_idle_seconds": 60}, {}, ["idle_seconds"]),
        ({"max_idle_seconds": 60}, {"idle_seconds": 61}, ["idle_seconds"]),
        ({"max_idle_seconds": 60}, {"idle_seconds": 60}, []),
        ({"images": ["docker.io/library/*"]}, {"image": "debian:12"}, []),
        ({"images": ["docker.io/library/debian:12"]}, {"image": "debian:12@sha256:" + "0" * 64}, ["image"]),
        ({"images": ["docker.io/library/*"]}, {"image": "sha256:" + "0" * 64}, ["image"]),
        ({"images": ["sha256:*"]}, {"image": "sha256:" + "0" * 64}, ["image"]),
        ({"registries": ["docker.io"]}, {"image": "sha256:" + "0" * 64}, ["image"]),
        ({"images": ["a", "sha256:" + "0" * 64]}, {"image": "sha256:" + "0" * 64}, []),
        ({}, {"image": "sha256:" + "0" * 64}, []),
        ({"images": ["ghcr.io/*"]}, {"image": "0" * 12}, ["image"]),
        ({"images": ["ghcr.io/*"]}, {"image": "sha256:" + "0" * 12}, ["image"]),
        ({"registries": ["ghcr.io"]}, {"image": "0"}, ["image"]),
        ({"images": ["docker.io/*"]}, {"image": "DOCKER.IO/library/debian"}, []),
        ({"images": ["docker.io/library/*"]}, {"image": "evil.io/library/debian"}, ["image"]),
        ({"registries": ["docker.io"]}, {"image": "ghcr.io/a/b"}, ["image"]),
        ({"registries": ["docker.io", "127.0.0.1:5000"]}, {"image": "127.0.0.1:5000/b"}, []),
    ],
)
def test_each_key_bounds_its_field(policy: dict[str, object], fields: dict[str, object], named: list[str]) -> None:
    assert refused(spec(**fields), Policy.model_validate(policy)) == named


def test_capacity_ahead_is_bound_like_what_it_is_for() -> None:
    asked = PrepareRequest(count=1, cpus=4, isolation="runc", image="ghcr.io/a/b", gpus=2)
    policy = Policy(max_cpus=2, gpus=1, registries=("docker.io",), runtimes=("runsc",))
    found = [violation.field for violation in check_prepare(asked, policy)]
    assert found == ["image", "cpus", "gpus", "runtime", "isolation"]
    assert check_prepare(PrepareRequest(count=1, cpus=1), DEFAULT) == []


def test_a_refusal_says_what_is_allowed_and_where_that_is_set() -> None:
    text = "[tenants.acme.policy]\nisolations = ['gvisor']\nmax_cpus = 2"
    policy, _ = Policies.parse(text, "policy.toml").of("acme")
    found = check(spec(isolation="runc", cpus=4), policy)
    assert [(one.field, one.allowed, one.where) for one in found] == [
        ("cpus", "at most 2", "policy.toml [tenants.acme.policy] max_cpus"),
        ("isolation", "'gvisor'", "policy.toml [tenants.acme.policy] isolations"),
    ]


def test_large_amounts_are_written_out() -> None:
    (found,) = check(spec(ttl_seconds=10_000_000), Policy(max_ttl_seconds=9_999_999))
    assert (found.value, found.allowed) == ("10000000", "at most 9999999")
