"""Nothing of a node is left."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from node_agent.cli import app
from node_agent.errors import RuntimeFailure
from node_agent.install.uninstall import record_engines, recorded_settings, remove_node, remove_traces
from node_agent.runtime.base import Order
from node_agent.settings import NodeSettings
from node_agent.startup import NodeStartError, hold_root
from tests.fakes.runtime import FakeRuntime


def test_a_cleanup_needs_the_root_only_and_can_run_twice(tmp_path: Path) -> None:
    root = tmp_path / "node"
    root.mkdir()
    settings = NodeSettings.load(
        None, {}, gateway_url="http://g", root=root, docker_url="unix:///x", runtimes=("runsc",)
    )
    record_engines(settings)
    again = recorded_settings(root)
    assert (again.docker_url, again.runtimes) == ("unix:///x", ("runsc",))
    FakeRuntime(root / "fake")
    done = remove_node(again, {"runsc": lambda s: FakeRuntime(s.root / "fake")})
    assert not root.exists()
    assert done == [f"directory {root}"]
    assert remove_node(again, {}) == []


def test_a_cleanup_of_a_living_node_is_refused(tmp_path: Path) -> None:
    settings = NodeSettings.load(None, {}, gateway_url="http://g", root=tmp_path, runtimes=("runsc",))
    with hold_root(tmp_path):
        assert (tmp_path / "agent.lock").stat().st_mode & 0o777 == 0o600
    with hold_root(tmp_path), pytest.raises(NodeStartError, match="another node agent runs"):
        remove_node(settings, {})
    assert tmp_path.exists()


def test_the_cleanup_command_is_silent_where_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "engines.json").write_text(json.dumps({"docker_url": "unix:///none", "runtimes": ["docker"]}))
    done = CliRunner().invoke(app, ["cleanup", "--root", str(tmp_path / "nowhere")])
    assert (done.exit_code, done.output) == (0, "")


@pytest.mark.parametrize(("code", "removed"), [(ErrorCode.INTERNAL, ["b", "c"]), (ErrorCode.BUSY, [])])
def test_a_sandbox_that_does_not_go_is_not_waited_for_again(
    tmp_path: Path, code: ErrorCode, removed: list[str]
) -> None:
    runtime = FakeRuntime(tmp_path / "fake")
    for name in ("a", "b", "c"):
        spec = SandboxSpec(id=name, image="i")
        runtime.create(Order(name, 1, f"op-{name}", spec, spec.sha256()))
    runtime.controls.fail_deletes.append(RuntimeFailure(code, "it does not go"))

    gone = remove_traces({"runsc": runtime})

    assert [name for name in ("a", "b", "c") if f"runsc: sandbox {name}" in gone] == removed
    for name in ("a", "b", "c"):
        runtime.delete(name)
