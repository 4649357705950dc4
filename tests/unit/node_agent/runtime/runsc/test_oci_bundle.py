"""What goes into an OCI bundle, and whether its first process can start."""

from pathlib import Path
from typing import Any

import pytest

from gateway.wire.sandboxes import DEFAULT_CAPABILITIES, SandboxSpec, Security
from node_agent.host.accounts import Account
from node_agent.host.cgroup import gvisor_threads
from node_agent.host.images import EngineImage
from node_agent.runtime.runsc import oci_bundle
from node_agent.runtime.runsc.oci_bundle import FirstProcess, GuestFiles

USER = Account(1000, 1000)
ROOT = Account(0, 0, (), "root", "/root")


def spec(**fields: Any) -> SandboxSpec:
    return SandboxSpec.model_validate({"id": "a_b.c", "image": "i"} | fields)


def image(**fields: Any) -> EngineImage:
    values: dict[str, Any] = {"env": {}, "entrypoint": (), "command": (), "user": "", "working_dir": ""}
    return EngineImage(id="sha256:0", digest="sha256:0", **values | fields)


def config(asked: SandboxSpec, account: Account = USER, *, init: bool = False) -> dict[str, Any]:
    host = oci_bundle.BundleHost(Path("/r"), Path("/w"), Path("/t"), init, "/sandbox-t/a", Path("/run/netns/n"))
    return oci_bundle.config(asked, oci_bundle.first_process(asked, image(), account), host)


@pytest.mark.parametrize(
    ("entrypoint", "image_command", "command", "argv"),
    [
        ((), ("serve",), [], ("serve",)),
        ((), ("serve",), ["mine", "-x"], ("mine", "-x")),
        (("entry",), ("serve",), [], ("entry", "serve")),
        (("entry",), ("serve",), ["mine"], ("entry", "mine")),
        (("entry",), (), [], ("entry",)),
        ((), (), [], ("/.sandbox/busybox", "sleep", "2147483647")),
    ],
)
def test_first_process_is_what_docker_run_would_start(
    entrypoint: tuple[str, ...], image_command: tuple[str, ...], command: list[str], argv: tuple[str, ...]
) -> None:
    made = image(entrypoint=entrypoint, command=image_command)

    assert oci_bundle.first_process(spec(command=command), made, USER).argv == argv


@pytest.mark.parametrize(
    ("asked", "of_image", "expected"),
    [(None, "", "/workspace"), (None, "/", "/workspace"), (None, "/app", "/app"), ("/x", "/app", "/x")],
)
def test_working_directory(asked: str | None, of_image: str, expected: str) -> None:
    process = oci_bundle.first_process(spec(working_dir=asked), image(working_dir=of_image), USER)

    assert process.working_dir == expected


def test_environment_of_the_spec_wins_over_the_images_and_that_over_the_logins() -> None:
    asked = spec(env={"A": "spec", "PATH": "/spec"})
    env = oci_bundle.environment(asked, {"A": "image", "B": "image", "HOME": "/image"}, ROOT)

    assert env == {"A": "spec", "B": "image", "PATH": "/spec", "HOME": "/image", "USER": "root", "HOSTNAME": "a-b-c"}


def test_user_without_an_entry_is_at_home_in_the_workspace() -> None:
    env = oci_bundle.environment(spec(), {}, USER)

    assert env["HOME"] == "/workspace"
    assert "USER" not in env


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        (Security(), set()),
        (Security(cap_add=["NET_RAW", "CAP_KILL"]), {"NET_RAW", "KILL"}),
        (Security(cap_drop=[]), set(DEFAULT_CAPABILITIES)),
        (Security(cap_drop=["CHOWN"]), set(DEFAULT_CAPABILITIES) - {"CHOWN"}),
    ],
)
def test_capabilities(security: Security, expected: set[str]) -> None:
    assert oci_bundle.capabilities(security) == expected


def test_all_capabilities_are_all_of_linux() -> None:
    everything = oci_bundle.capabilities(Security(cap_add=["ALL"]))

    assert oci_bundle.capability_bits(everything) == (1 << 41) - 1


def test_capability_bits_are_the_kernels_numbers() -> None:
    assert oci_bundle.capability_bits(["KILL", "CHOWN", "SYS_ADMIN"]) == 1 << 5 | 1 << 0 | 1 << 21


def test_unknown_capability_is_named() -> None:
    with pytest.raises(oci_bundle.UnstartableError, match="FLY"):
        oci_bundle.capabilities(Security(cap_add=["CAP_FLY"]))


def test_only_root_holds_capabilities() -> None:
    asked = spec(security={"cap_add": ["NET_RAW"]})

    assert config(asked)["process"]["capabilities"]["effective"] == []
    assert config(asked, ROOT)["process"]["capabilities"]["effective"] == ["CAP_NET_RAW"]
    assert config(asked)["process"]["capabilities"]["bounding"] == ["CAP_NET_RAW"]


def test_limits() -> None:
    made = config(spec(cpus=4.5, memory_mb=100, security={"pids_limit": 9}))

    assert made["linux"]["resources"]["memory"] == {"limit": 100 * 1024 * 1024}
    assert made["linux"]["resources"]["cpu"] == {"period": 100_000, "quota": 450_000, "shares": 4608}
    assert made["linux"]["resources"]["pids"] == {"limit": gvisor_threads(9)}
    assert {"type": "RLIMIT_NPROC", "soft": 9, "hard": 9} in made["process"]["rlimits"]


def test_without_a_limit_of_its_own_the_nodes_bound_holds() -> None:
    made = config(spec(security={"pids_limit": None}))

    assert {"type": "RLIMIT_NPROC", "soft": 8192, "hard": 8192} in made["process"]["rlimits"]


def test_start_is_not_held_back_by_a_small_share_of_the_processor() -> None:
    assert config(spec(cpus=0.1))["linux"]["resources"]["cpu"]["quota"] == 200_000


def test_mounts() -> None:
    asked = spec(filesystem={"workspace_path": "/work", "tmpfs_mb": 5, "run_tmpfs_mb": 6})
    mounts = {mount["destination"]: mount for mount in config(asked)["mounts"]}

    assert mounts["/work"]["source"] == "/w"
    assert "rw" in mounts["/work"]["options"]
    assert (mounts["/.sandbox"]["source"], mounts["/.sandbox"]["options"]) == ("/t", ["bind", "nodev", "nosuid", "ro"])
    assert "size=5m" in mounts["/tmp"]["options"]
    assert "size=6m" in mounts["/run"]["options"]
    assert "ro" in mounts["/sys"]["options"]


def test_init_is_put_before_the_first_process() -> None:
    made = config(spec(command=["serve", "-x"]), init=True)

    assert made["process"]["args"] == ["/.sandbox/init", "--", "serve", "-x"]


@pytest.fixture
def files(tmp_path: Path) -> GuestFiles:
    root, workspace = tmp_path / "root", tmp_path / "workspace"
    for directory in (root / "bin", root / "app", workspace / "sub"):
        directory.mkdir(parents=True)
    for path, mode in (("bin/tool", 0o755), ("bin/secret", 0o700), ("app/run", 0o755), ("app/text", 0o644)):
        (root / path).write_text("")
        (root / path).chmod(mode)
    (root / "sbin").symlink_to("/bin")
    (root / "escape").symlink_to("/../../../../../etc")
    (workspace / "mine").write_text("")
    (workspace / "mine").chmod(0o755)
    return GuestFiles(root, workspace, "/workspace")


def process(name: str, working_dir: str = "/", uid: int = 1000) -> FirstProcess:
    return FirstProcess((name,), {"PATH": "/nowhere:/bin"}, working_dir, Account(uid, uid))


@pytest.mark.parametrize(
    ("name", "working_dir"),
    [
        ("tool", "/"),
        ("/bin/tool", "/app"),
        ("/sbin/tool", "/"),
        ("./run", "/app"),
        ("../app/run", "/bin"),
        ("/workspace/mine", "/workspace/sub"),
        ("../mine", "/workspace/sub"),
        ("tool", "/tmp"),
        ("tool", "/proc"),
        ("/.sandbox/busybox", "/workspace"),
    ],
)
def test_what_is_there_can_start(files: GuestFiles, name: str, working_dir: str) -> None:
    assert files.problem(process(name, working_dir)) is None


@pytest.mark.parametrize(
    ("name", "working_dir", "named"),
    [
        ("other", "/", "other"),
        ("/bin/other", "/", "/bin/other"),
        ("/app/text", "/", "/app/text"),
        ("/bin/secret", "/", "/bin/secret"),
        ("/app", "/", "/app"),
        ("tool", "/not/there", "/not/there"),
        ("tool", "/app/text", "/app/text"),
        ("tool", "/tmp/sub", "/tmp/sub"),
        ("tool", "/escape", "/escape"),
    ],
)
def test_what_is_not_there_is_named(files: GuestFiles, name: str, working_dir: str, named: str) -> None:
    assert named in str(files.problem(process(name, working_dir)))


def test_root_may_run_what_anybody_may(files: GuestFiles) -> None:
    assert files.problem(process("secret", uid=0)) is None
