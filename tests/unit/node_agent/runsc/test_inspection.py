"""Whether a fresh sandbox could start its first process."""

from pathlib import Path

import pytest

from node_agent.host.accounts import Account
from node_agent.runtime.runsc.inspection import View
from node_agent.runtime.runsc.oci_bundle import FirstProcess


@pytest.fixture
def view(tmp_path: Path) -> View:
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
    return View(root, workspace, "/workspace")


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
def test_what_is_there_can_start(view: View, name: str, working_dir: str) -> None:
    assert view.problem(process(name, working_dir)) is None


@pytest.mark.parametrize(
    ("name", "working_dir", "said"),
    [
        ("other", "/", "other was not found in PATH"),
        ("/bin/other", "/", "/bin/other is not there"),
        ("/app/text", "/", "/app/text is not an executable file"),
        ("/bin/secret", "/", "not an executable file for user 1000"),
        ("/app", "/", "/app is not an executable file"),
        ("tool", "/not/there", "working directory /not/there"),
        ("tool", "/app/text", "working directory /app/text"),
        ("tool", "/tmp/sub", "working directory /tmp/sub"),
        ("tool", "/escape", "working directory /escape"),
    ],
)
def test_what_is_not_there_is_named(view: View, name: str, working_dir: str, said: str) -> None:
    assert said in str(view.problem(process(name, working_dir)))


def test_root_may_run_what_anybody_may(view: View) -> None:
    assert view.problem(process("secret", uid=0)) is None
