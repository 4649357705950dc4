"""The node's own Docker daemon: its arguments."""

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
