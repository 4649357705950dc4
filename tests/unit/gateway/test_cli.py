"""The commands `sandboxes gateway` and `sandboxes token`: effects, exit codes, and what an error names."""

import contextlib
import json
import socket
import sqlite3
import sys
from pathlib import Path

import pytest

from sandboxes import app
from sandboxes.local.state_dir import StateDir
from tests.fakes.gateway import TOKEN, Gateway, Reply


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_tokens_offline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path))
    code, secret, _ = run(capsys, "token", "create", "--name", "one", "--scope", "client", *state)
    assert (code, len(secret.split())) == (0, 1)
    code, out, _ = run(capsys, "token", "ls", "--json", *state)
    (record,) = json.loads(out)
    assert (record["name"], record["scope"], record["revoked_at"]) == ("one", "client", None)
    assert secret.strip() not in out
    assert run(capsys, "token", "revoke", record["id"], *state)[0] == 0
    assert "revoked" in run(capsys, "token", "ls", *state)[1]
    code, _, err = run(capsys, "token", "revoke", "none", *state)
    assert code == 1
    assert "none" in err


def test_every_token_command_prints_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = ("--json", "--state-dir", str(tmp_path))
    made = json.loads(run(capsys, "token", "create", "--name", "one", "--scope", "operator", *state)[1])
    assert made["token"]
    assert json.loads(run(capsys, "token", "ls", *state)[1]) == [made["record"]]
    revoked = json.loads(run(capsys, "token", "revoke", made["record"]["id"], *state)[1])
    assert revoked["id"] == made["record"]["id"]
    assert revoked["revoked_at"]


@pytest.mark.parametrize("terminal", [False, True])
def test_ids_are_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    name = "[a name] " + "of many words " * 8
    state = ("--state-dir", str(tmp_path))
    made = json.loads(run(capsys, "token", "create", "--name", name, "--scope", "client", "--json", *state)[1])
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    out = run(capsys, "token", "ls", *state)[1]
    assert made["record"]["id"] in out
    assert "[a name]" in out
    assert (len(out.splitlines()) > 2) is terminal


def test_node_credentials_are_not_offered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "token", "create", "--name", "x", "--scope", "node", "--state-dir", str(tmp_path))[0] == 2
    assert "node" not in run(capsys, "token", "create", "--help")[1]


@pytest.mark.parametrize("words", [("ls",), ("revoke", "x")])
def test_looking_creates_no_database(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str]) -> None:
    state = tmp_path / "state"
    code, _, err = run(capsys, "token", *words, "--state-dir", str(state))
    assert code == 1
    assert str(state) in err
    assert not state.exists()


def test_the_directory_of_up_stands_for_its_gateways(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = StateDir(tmp_path / "up")
    directory.gateway.mkdir(parents=True)
    directory.lock.touch()
    for state in (directory.root, directory.gateway):
        made = run(capsys, "token", "create", "--name", "x", "--scope", "client", "--state-dir", str(state), "--json")[
            1
        ]
        assert json.loads(made)["token"]
    assert not (directory.root / "gateway.db").exists()
    for state in (directory.root, directory.gateway):
        assert len(json.loads(run(capsys, "token", "ls", "--json", "--state-dir", str(state))[1])) == 2
        assert run(capsys, "audit", "--state-dir", str(state))[1].count("token_created") == 2


def test_an_audit_log_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "audit", "--state-dir", str(tmp_path / "state"))
    assert (code, out, str(tmp_path / "state") in err) == (1, "", True)
    assert not (tmp_path / "state").exists()


def test_options_that_name_two_places_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL", raising=False)
    state = ("--state-dir", str(tmp_path))
    assert run(capsys, "token", "ls", "--token-file", "/dev/null")[0] == 2
    assert run(capsys, "token", "ls", "--token-file", "/dev/null", *state)[0] == 2
    assert run(capsys, "token", "ls", "--url", "http://127.0.0.1:9", *state)[0] == 2


def test_a_named_directory_wins_over_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCLOUD_SANDBOX_URL", "http://127.0.0.1:9")
    state = ("--state-dir", str(tmp_path))
    assert run(capsys, "token", "create", "--name", "one", "--scope", "client", *state)[0] == 0


def test_over_http_a_token_is_needed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_API_TOKEN", raising=False)
    assert run(capsys, "token", "ls", "--url", "http://127.0.0.1:9")[0] == 2
    absent = run(capsys, "token", "ls", "--url", "http://127.0.0.1:9", "--token-file", str(tmp_path / "none"))
    assert absent[0] == 1
    (tmp_path / "token").write_text("x")
    code, _, err = run(capsys, "token", "ls", "--url", "http://127.0.0.1:9", "--token-file", str(tmp_path / "token"))
    assert code == 1
    assert "refused" in err


# -- a gateway that cannot start --------------------------------------------------------------------------------------


def start(capsys: pytest.CaptureFixture[str], state: Path, *words: str) -> tuple[int, str]:
    """Return exit code and error of a gateway that must not start."""
    code, _, err = run(capsys, "gateway", "run", "--port", "0", "--state-dir", str(state), *words)
    (sentence,) = [line for line in err.splitlines() if line.startswith("error: ")]
    return code, sentence


def test_no_token_no_start(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, sentence = start(capsys, tmp_path)
    assert code == 1
    assert "sandboxes token create" in sentence


def test_a_revoked_token_is_no_token(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path))
    run(capsys, "token", "create", "--name", "one", "--scope", "client", *state)
    record = json.loads(run(capsys, "token", "ls", "--json", *state)[1])[0]
    run(capsys, "token", "revoke", record["id"], *state)
    assert start(capsys, tmp_path)[0] == 1


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, sentence = start(capsys, tmp_path / "new", "--port", str(port))
    assert code == 1
    assert f"port {port}" in sentence
    assert not (tmp_path / "new").exists()


def test_an_address_of_another_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, sentence = start(capsys, tmp_path / "new", "--host", "192.0.2.1")
    assert code == 1
    assert "192.0.2.1" in sentence


def test_a_bad_setting(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("prot = 1\n")
    code, sentence = start(capsys, tmp_path, "--config", str(config))
    assert code == 2
    assert "prot" in sentence
    monkeypatch.setenv("SANDBOXES_GATEWAY_LOST_AFTER", "soon")
    code, sentence = start(capsys, tmp_path)
    assert code == 2
    assert "lost_after" in sentence


def test_a_database_of_a_newer_version(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "token", "create", "--name", "one", "--scope", "client", "--state-dir", str(tmp_path))
    with contextlib.closing(sqlite3.connect(tmp_path / "gateway.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'ffff'")
    code, sentence = start(capsys, tmp_path)
    assert code == 1
    assert "newer" in sentence


def test_a_state_directory_that_cannot_be_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, sentence = start(capsys, tmp_path / "file" / "state")
    assert code == 1
    assert str(tmp_path / "file") in sentence


def test_a_slip_in_the_name_of_a_tenant_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[tenants.vision.policy]\n")
    config = tmp_path / "gateway.toml"
    config.write_text(f'state_dir = "{tmp_path}/state"\npolicy_file = "{policy}"\n')
    make = ("token", "create", "--name", "n", "--scope", "client", "--config", str(config), "--tenant")

    code, out, err = run(capsys, *make, "acme")
    assert code == 0
    assert out.startswith("sbxc_")
    assert err.startswith("warning: this tenant is new: ")
    for known in ("acme", "vision", "default"):
        assert run(capsys, *make, known)[2] == ""
    assert "did you mean acme?" in run(capsys, *make, "acm")[2]

    code, out, err = run(capsys, "audit", "--config", str(config), "--tenant", "visoin")
    assert (code, out) == (1, "")
    assert "did you mean vision?" in err
    assert run(capsys, "audit", "--config", str(config), "--tenant", "vision", "--until", "2020-01-01")[0] == 0


def test_usage_of_a_tenant_that_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gateway() as gateway:
        monkeypatch.setenv("UCLOUD_SANDBOX_URL", gateway.url)
        monkeypatch.setenv("UCLOUD_SANDBOX_API_TOKEN", TOKEN)
        gateway.next("GET", "/v1/usage", *[Reply(body=b'{"items": [], "next_cursor": null}')] * 2)
        gateway.next("GET", "/v1/policy", *[Reply(body=b'{"tenants": ["acme"]}')] * 2)
        gateway.next("GET", "/v1/tokens", *[Reply(body=b'{"tokens": []}')] * 2)
        code, out, err = run(capsys, "usage", "--tenant", "acne", "--json")
        assert (code, out) == (1, "")
        assert "did you mean acme?" in err
        assert run(capsys, "usage", "--tenant", "acme", "--json") == (0, "", "")
