"""Which service a command talks to, with which token, and wrong usage."""

from pathlib import Path

import pytest

from tests.fakes.gateway import TOKEN, Gateway
from tests.unit.sandboxes.cli_process import Cli


def local_service(tmp_path: Path, url: str) -> tuple[str, str]:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "url").write_text(url + "\n")
    (tmp_path / "tokens" / "client").write_text(TOKEN + "\n")
    (tmp_path / "tokens" / "operator").write_text("operator-token\n")
    return ("--state-dir", str(tmp_path))


def test_local_service_is_found(cli: Cli, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL")
    monkeypatch.delenv("UCLOUD_SANDBOX_API_TOKEN")
    state = local_service(tmp_path, gateway.url)
    assert cli("ls", *state)[0] == 0
    cli("nodes", *state)
    assert gateway.requests[-1].headers["authorization"] == "Bearer operator-token"


def test_local_token_is_not_sent_to_another_service(
    cli: Cli, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_API_TOKEN")
    code, _, err = cli("ls", *local_service(tmp_path, "http://127.0.0.1:1"))
    assert (code, gateway.requests) == (1, [])
    assert "--token-file" in err


def test_token_file_beats_the_environment(cli: Cli, gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("other\n")
    code, _, err = cli("ls", "--token-file", str(tmp_path / "token"))
    assert gateway.requests[-1].headers["x-ucloud-sandbox-token"] == "other"
    assert (code, err.count("\n")) == (1, 1)


def test_without_url_the_error_is_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL")
    code, _, err = cli("ls", "--state-dir", str(tmp_path))
    assert (code, err.count("\n")) == (1, 1)
    assert "UCLOUD_SANDBOX_URL" in err


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("ls", "--nonsense"),
        ("ls", "--label", "x"),
        ("run", "--env", "NOT_SET_ANYWHERE", "busybox", "--", "true"),
        ("exec", "box"),
    ],
)
def test_wrong_usage_exits_2(cli: Cli, gateway: Gateway, words: tuple[str, ...]) -> None:
    assert cli(*words)[0] == 2
    assert gateway.requests == []


@pytest.mark.parametrize("words", [("run", "busybox"), ("exec", "box")])
def test_option_of_the_command_without_dashes_gets_a_hint(cli: Cli, gateway: Gateway, words: tuple[str, ...]) -> None:
    code, _, err = cli(*words, "python", "-c", "x")
    assert code == 2
    assert " -- " in err
    assert " -- " not in cli(*words, "--nonsense", "--", "true")[2]
    assert gateway.requests == []


@pytest.mark.parametrize("words", [("run", "busybox", "--", "true"), ("exec", "box", "--", "true")])
def test_run_and_exec_exit_125_without_a_service(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL")
    code, _, err = cli(words[0], "--state-dir", str(tmp_path), *words[1:])
    assert code == 125
    assert "UCLOUD_SANDBOX_URL" in err
