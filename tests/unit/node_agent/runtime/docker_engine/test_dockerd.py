"""The node's own Docker daemon: its arguments."""

import subprocess
from pathlib import Path

from node_agent.runtime.docker_engine import dockerd


def test_everything_lies_below_its_directory(tmp_path: Path) -> None:
    made = dockerd.DockerDaemon(tmp_path / "engine", tmp_path / "docker.sock")

    arguments = made._arguments(tmp_path / "engine" / "runsc")

    for name in ("data-root", "exec-root", "pidfile"):
        (value,) = [text for text in arguments if text.startswith(f"--{name}=")]
        assert value.startswith(f"--{name}={tmp_path / 'engine'}/")
    assert f"--host=unix://{tmp_path / 'docker.sock'}" in arguments
    assert {"--iptables=false", "--bridge=none", "--ip-masq=false", "--live-restore"} <= set(arguments)


def test_wrapper_hides_the_sysctl_only_where_it_has_to() -> None:
    plain = dockerd.gvisor_wrapper("/usr/bin/runsc", hide_sysctl=False)
    hidden = dockerd.gvisor_wrapper("/usr/bin/runsc", hide_sysctl=True)

    assert "unshare" not in plain
    assert "mount -t tmpfs tmpfs /proc/sys/net" in hidden
    for script in (plain, hidden):
        assert "--platform=systrap" in script
        assert "--overlay2=none" in script


def test_wrapper_makes_no_container_whose_root_it_cannot_find(tmp_path: Path) -> None:
    script = tmp_path / "runsc"
    script.write_text(dockerd.gvisor_wrapper("/bin/echo", hide_sysctl=False))
    (tmp_path / "config.json").write_text("{}")

    def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["sh", script, *arguments], capture_output=True, text=True, check=False, timeout=60)

    made = call("--root", "/r", "create", "--bundle", str(tmp_path), "id")
    assert (made.returncode, made.stdout) == (1, "")
    assert call("state", "id").stdout.endswith("state id\n")
