"""``sandboxes doctor``: rows of all roles, the cure beside each fault, and an exit code for scripts."""

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from gateway.wire.system import Check, Verdict
from sandboxes import doctor
from sandboxes.app import run

OK = Check(name="one", verdict=Verdict.OK, found="fine")
WARNING = Check(name="two", verdict=Verdict.WARNING, found="slow", cure="buy a faster one")
ERROR = Check(name="three", verdict=Verdict.ERROR, found="absent", cure="apt-get install three")


def good() -> list[Check]:
    return [OK, WARNING]


def bad() -> list[Check]:
    return [ERROR]


def broken() -> list[Check]:
    raise OSError("no such device")


def point(function: Callable[[], list[Check]]) -> EntryPoint:
    # `load` imports by module name; these functions live in a module that pytest has loaded under its own name.
    entry = EntryPoint(name=function.__name__, value=f"{function.__module__}:{function.__name__}", group=doctor.CHECKS)
    object.__setattr__(entry, "load", lambda: function)
    return entry


def roles(monkeypatch: pytest.MonkeyPatch, *functions: Callable[[], list[Check]]) -> None:
    monkeypatch.setattr(doctor, "entry_points", lambda group: [point(f) for f in functions])


def test_rows_of_all_roles_as_json_and_exit_code_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    roles(monkeypatch, good)
    assert run(["doctor", "--json"]) == 0
    assert [Check.model_validate(row) for row in json.loads(capsys.readouterr().out)] == [OK, WARNING]


def test_error_row_exits_1_and_shows_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    roles(monkeypatch, good, bad)
    assert run(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "apt-get install three" in shown
    assert shown.index("three") < shown.index("one"), "roles come in the order of their names"


def test_failing_check_hides_no_other(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    roles(monkeypatch, broken, good)
    assert run(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "the check itself failed: OSError: no such device" in shown
    assert "fine" in shown


def test_role_without_its_packages_is_a_warning() -> None:
    absent = EntryPoint(name="node", value="no_such_module_of_ours:checks", group=doctor.CHECKS)
    (row,) = doctor.rows_of(absent)
    assert row.verdict is Verdict.WARNING
    assert row.cure == "pip install 'sandbox-fleet[node]'"
