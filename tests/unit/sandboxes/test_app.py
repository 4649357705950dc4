"""The table of commands: names, mistakes and exit codes."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from sandboxes import app
from tests.unit.sandboxes.cli_process import Cli


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("sandboxes ")


def test_help_lists_every_command_and_loads_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.importlib, "import_module", lambda name: pytest.fail(f"{name} was loaded"))
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f" {name} " in out for name in app.COMMANDS)


@pytest.mark.parametrize("name", list(app.COMMANDS))
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert f"sandboxes {name}" in out


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["tokne"], "'token'"),
        (["--versoin"], "--version"),
        (["token", "creat"], "'create'"),
        (["gateway", "run", "--prot", "1"], "--port"),
    ],
)
def test_mistyped_word_gets_a_suggestion(capsys: pytest.CaptureFixture[str], words: list[str], suggestion: str) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2
    assert suggestion in err


WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from sandboxes.app import run
sys.exit(run())
"""
"""Runs the command line as if a module were not installed."""


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("fastapi", ["gateway", "openapi"], "gateway"),
        ("uvicorn", ["gateway", "run", "--state-dir", "{tmp}"], "gateway"),
        ("sqlmodel", ["token", "ls", "--state-dir", "{tmp}"], "gateway"),
        ("fastapi", ["node", "run", "--root", "{tmp}"], "node"),
        ("apscheduler", ["autoscaler", "pools"], "autoscaler"),
        ("ucloud_sandboxes_sdk", ["ls"], "cli"),
    ],
)
def test_missing_package_is_named_with_its_extra(tmp_path: Path, module: str, words: list[str], extra: str) -> None:
    given = [word.format(tmp=tmp_path) for word in words]
    done = subprocess.run([sys.executable, "-c", WITHOUT, module, *given], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"'{module}" in line
    assert line.endswith(f"pip install 'sandbox-fleet[{extra}]'")


def test_missing_package_of_a_cloud_is_an_extra_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError("no", name="hcloud.core")

    monkeypatch.setattr(app.importlib, "import_module", absent)
    assert "[hetzner]" in run(capsys, "gateway")[2]


def test_missing_module_of_our_own_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError("no", name="gateway.nosuch")

    monkeypatch.setattr(app.importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError):
        app.run(["gateway"])


class CodeError(click.ClickException):
    exit_code = 7


@pytest.mark.parametrize(
    ("error", "code"), [(click.ClickException("why"), 1), (click.UsageError("why"), 2), (CodeError("why"), 7)]
)
def test_click_exception_is_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: click.ClickException, code: int
) -> None:
    def fails(name: str) -> None:
        raise error

    monkeypatch.setattr(app, "_load", fails)
    assert run(capsys, "ls") == (code, "", "error: why\n")


@pytest.mark.parametrize("name", ["run", "exec", "ls", "cp", "logs", "rm", "pause", "resume", "restart", "nodes"])
def test_every_help_has_an_example(cli: Cli, name: str) -> None:
    code, out, _ = cli(name, "--help")
    assert code == 0
    assert "Example:  " in out.decode()
    assert "--url" in out.decode()
