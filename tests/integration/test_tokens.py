"""`sandboxes token` against a running gateway, as after the `export` lines of `sandboxes up`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import cli
from sandboxes import app
from tests.gateway_process import gateway_process, new_token


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["token", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the state directory of a running service whose URL and client token are exported."""
    state = tmp_path / "gateway"
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "operator").write_text(new_token(state, "operator") + "\n")
    monkeypatch.setenv("UCLOUD_SANDBOX_API_TOKEN", new_token(state, "client"))
    monkeypatch.setattr(cli, "UP_STATE_DIR", tmp_path)
    with gateway_process(state) as gateway:
        (tmp_path / "url").write_text(gateway.url + "\n")
        monkeypatch.setenv("UCLOUD_SANDBOX_URL", gateway.url)
        yield tmp_path


def test_exported_variables_lead_to_the_running_gateway(capsys: pytest.CaptureFixture[str], up: Path) -> None:
    made = json.loads(run(capsys, "create", "--name", "ci", "--scope", "client", "--json")[1])
    (found,) = [record for record in json.loads(run(capsys, "ls", "--json")[1]) if record["name"] == "ci"]
    assert found == made["record"]
    assert json.loads(run(capsys, "revoke", found["id"], "--json")[1])["revoked_at"]


def test_a_client_token_is_not_enough(
    capsys: pytest.CaptureFixture[str], up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (up / "url").unlink()  # the service of somebody else
    code, _, err = run(capsys, "ls")
    assert code == 1
    assert "--token-file" in err
    assert run(capsys, "ls", "--token-file", str(up / "tokens" / "operator"))[0] == 0
    monkeypatch.setenv("UCLOUD_SANDBOX_API_TOKEN", (up / "tokens" / "operator").read_text())
    assert run(capsys, "ls")[0] == 0
