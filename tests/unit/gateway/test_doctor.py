"""The gateway's rows of ``sandboxes doctor``."""

import socket
from pathlib import Path

import pytest

from gateway import doctor as checks
from gateway.wire.limits import MIB
from gateway.wire.system import Verdict


def test_every_row_that_is_not_ok_names_a_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXES_GATEWAY_STATE_DIR", str(tmp_path))
    tmp_path.chmod(0o755)
    rows = checks.checks()
    assert {row.name for row in rows} >= {"python", "python packages", "package names", "state directory", "disk"}
    assert all(row.cure for row in rows if row.verdict is not Verdict.OK)


def test_bad_settings_are_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXES_GATEWAY_PORT", "a port")
    row = checks.checks()[-1]
    assert (row.name, row.verdict) == ("gateway settings", Verdict.ERROR)
    assert "port" in row.found


def test_python_and_packages() -> None:
    assert checks.python_version((3, 11, 0)).verdict is Verdict.OK
    assert checks.python_version((3, 10, 9)).verdict is Verdict.ERROR
    assert checks.python_packages(("json",)).verdict is Verdict.OK
    assert "no_such_module_of_ours" in checks.python_packages(("json", "no_such_module_of_ours")).found


def test_a_machine_that_is_only_a_node_has_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = checks.python_packages(("no_such_module_of_ours",))
    monkeypatch.setattr(checks, "python_packages", lambda: absent)
    rows = checks.checks()
    assert [row.name for row in rows] == ["python", "python packages", "package names"]
    assert Verdict.ERROR not in {row.verdict for row in rows}
    assert absent.cure


def test_another_distribution_with_our_package_name_is_an_error() -> None:
    assert checks.package_names({"gateway": ["sandbox-fleet"]}).verdict is Verdict.OK
    row = checks.package_names({"gateway": ["sandbox-fleet", "other-agent"]})
    assert row.verdict is Verdict.ERROR
    assert "gateway is also in other-agent" in row.found


def test_a_taken_port_is_an_error_and_a_free_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        row = checks.port("127.0.0.1", number)
        assert row.verdict is Verdict.ERROR
        assert "--port" in row.cure
    assert checks.port("127.0.0.1", number).verdict is Verdict.OK


def test_the_state_directory_is_ours_alone(tmp_path: Path) -> None:
    place = tmp_path / "state"
    assert checks.state_dir(place).verdict is Verdict.OK
    place.mkdir(mode=0o700)
    assert checks.state_dir(place).verdict is Verdict.OK
    place.chmod(0o755)
    assert checks.state_dir(place).cure == f"chmod 700 {place}"
    (tmp_path / "file").touch()
    assert checks.state_dir(tmp_path / "file").verdict is Verdict.ERROR


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(100 * MIB, Verdict.ERROR), (1024 * MIB, Verdict.WARNING), (99 * 1024 * MIB, Verdict.OK)],
)
def test_room_on_the_disk(tmp_path: Path, free: int, verdict: Verdict) -> None:
    assert checks.disk(tmp_path / "not" / "yet", free).verdict is verdict


def test_tokens_that_others_may_read_are_an_error(tmp_path: Path) -> None:
    assert checks.tokens(tmp_path / "none").verdict is Verdict.OK
    token = tmp_path / "client"
    token.touch(mode=0o600)
    assert checks.tokens(tmp_path).verdict is Verdict.OK
    token.chmod(0o644)
    assert checks.tokens(tmp_path).verdict is Verdict.ERROR
