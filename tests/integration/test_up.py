"""``sandboxes up`` for real: it starts everything, keeps it alive, recovers from SIGKILL, and shuts down cleanly."""

import os
import signal
import stat
from pathlib import Path

import pytest

from sandboxes.local.demo import free_port
from tests.engines.images import import_images
from tests.stack import DOWN_SECONDS, Up, assert_nothing_left, marks, pids_of, running, start, until
from ucloud_sandboxes_sdk import Image, PolicyDeniedError, SandboxHandle, SandboxSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def sandbox_in(up: Up) -> SandboxHandle:
    image = Image.from_registry(import_images(up.engine()).busybox)
    command = ["sh", "-c", "echo started >> /workspace/starts; exec sleep 600"]
    spec = SandboxSpec(id="kept", image=image, command=command, memory_mb=64, disk_mb=64)
    return up.client().create_sandbox(spec)


def starts_of(sandbox: SandboxHandle) -> str:
    """Return what its first process wrote; a create returns when that process runs, not when it has written."""
    script = "until [ -s /workspace/starts ]; do sleep 0.05; done; cat /workspace/starts"
    return sandbox.exec(["sh", "-c", script], timeout_seconds=30).stdout


def test_up_starts_serves_and_ends_clean(engines: None, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[default.policy]\nmax_cpus = 1\n")
    with running(None, "--policy", str(policy)) as up:
        policy.write_text("[default.policy]\nmax_cpu = 1\n")
        sandbox = sandbox_in(up)
        assert starts_of(sandbox) == "started\n"
        record = up.client().get_sandbox("kept")
        assert record is not None
        assert record["isolation"] == "gvisor"
        for name in ("client", "operator"):
            assert stat.S_IMODE((up.directory.tokens / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(up.directory.root.stat().st_mode) == 0o700
        assert up.directory.url.read_text() == f"{up.url}\n"
        assert f"export UCLOUD_SANDBOX_URL={up.url}" in up.words
        with pytest.raises(PolicyDeniedError):
            up.client().create_sandbox(id="large", image=Image.from_registry("busybox"), cpus=2)
        until(lambda: "max_cpu:" in up.words, "it says what is wrong with the policy file")
        policy.write_text("[default.policy]\nmax_cpus = 2\n")
        until(lambda: "policy file is right again" in up.words, "it says that it is right again")
        policy.write_text("[default.policy]\nmax_cpus = 3\n")
        until(lambda: "policy file has changed" in up.words, "it says that it has changed")
        looked_for = marks(up.directory)
        assert up.end() == 0, up.words
        assert_nothing_left(looked_for)
        assert list(up.directory.instances.iterdir()) == []


@pytest.mark.parametrize("daemon", ["gateway", "autoscaler", "node"])
def test_daemon_that_dies_is_restarted(engines: None, daemon: str) -> None:
    with running() as up:
        first = up.pid(daemon)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: up.pid(daemon) not in {None, first}, f"another {daemon} runs")
        assert up.end() == 0, up.words


def test_start_after_sigkill_and_a_refused_one_takes_over_what_runs(engines: None) -> None:
    with running() as up:
        sandbox_in(up)
        token = (up.directory.tokens / "client").read_text()
        node = up.pid("node")
        up.process.kill()
        up.process.wait(DOWN_SECONDS)
        until(lambda: not pids_of(up.directory.root, "gateway"), "the gateway died with it")
        until(lambda: not pids_of(up.directory.root, "autoscaler"), "the autoscaler died with it")
        assert up.pid("node") == node

        wrong = up.directory.root / "policy.toml"
        wrong.write_text("[default.policy]\nmax_cpu = 1\n")
        refused = start(up.directory, up.port, "--policy", str(wrong), ready=False)
        assert refused.process.wait(DOWN_SECONDS) == 1
        until(lambda: "max_cpu" in refused.words and "goes on" in refused.words, "it says why, and what goes on")
        assert up.pid("node") == node, refused.words

        again = start(up.directory, up.port)
        try:
            assert (up.directory.tokens / "client").read_text() == token
            assert up.pid("node") == node
            sandbox = again.client().attach("kept")
            assert starts_of(sandbox) == "started\n"
            looked_for = marks(again.directory)
        finally:
            assert again.end(signal.SIGTERM) == 0, again.words
        assert_nothing_left(looked_for)


def test_start_on_another_port_after_sigkill_names_the_right_one(engines: None) -> None:
    with running() as up:
        looked_for = marks(up.directory)
        node = up.pid("node")
        up.process.kill()
        up.process.wait(DOWN_SECONDS)
        other = start(up.directory, free_port(), ready=False)
        assert other.process.wait(DOWN_SECONDS) == 1
        until(lambda: f"--port {up.port}" in other.words, "it says which port")
        assert up.pid("node") == node, other.words
        assert up.directory.url.read_text() == f"{up.url}\n"

        again = start(up.directory, up.port)
        assert again.end() == 0, again.words
        assert_nothing_left(looked_for)
