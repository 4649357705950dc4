"""What stops a command is one sentence on stderr and exit code 1; nothing is started then."""

import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autoscaler.cli import app, checks
from autoscaler.store.journal import Journal
from gateway.wire.checks import Verdict

GOOD = """
gateway_url = "http://127.0.0.1:1"
token_file = "{root}/token"
state_dir = "{root}/as"
[providers.local]
root = "{root}/vms"
[[pools]]
name = "cpu"
provider = "local"
"""


def failure(tmp_path: Path, text: str, command: str = "run") -> str:
    config = tmp_path / "as.toml"
    config.write_text(text.format(root=tmp_path))
    done = CliRunner().invoke(app, [command, "--config", str(config)])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "vms").exists()
    return done.stderr


@pytest.fixture(autouse=True)
def token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('{root}/token"', '{root}/none"', "token_file: "),
        ("[providers.local]", "[providers.fog]", "names the provider 'local' (there is: fog)"),
        ("[providers.local]", '[providers.local]\nkind = "fog"', "provider local: no provider 'fog' is installed"),
        ("root = ", "rot = ", "provider local: local: root: Field required; rot: Extra inputs are not permitted"),
        ('provider = "local"', 'provider = "local"\nmox = 1', "pools.0.mox: Extra inputs are not permitted"),
        ('gateway_url = "http', 'gateway_url = "ftp', "gateway_url: String should match pattern"),
        ("[providers.local]", 'database_url = "sqlite:////proc/no.db"\n[providers.local]', "the journal "),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path: Path, old: str, new: str, why: str) -> None:
    assert why in failure(tmp_path, GOOD.replace(old, new))


def test_an_empty_token_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    assert "is empty; put an operator token into it" in failure(tmp_path, GOOD)


@pytest.mark.parametrize("command", ["run", "plan", "status", "pools"])
def test_a_pool_that_wants_gpus_where_there_are_none_is_refused(tmp_path: Path, command: str) -> None:
    text = GOOD + '[[pools]]\nname = "gpu"\nprovider = "local"\ngpus = 1\n'
    refused = failure(tmp_path, text, command)
    assert "pool gpu: it wants GPUs (gpus = 1), and provider local has none; name a provider that has" in refused
    assert not (tmp_path / "as" / "journal.db").exists()


def test_reading_needs_no_secret_of_a_cloud(tmp_path: Path) -> None:
    cloud = '[providers.hetzner]\ntoken_env = "NOT_SET_HERE"\n[[pools]]'
    config = tmp_path / "as.toml"
    config.write_text(GOOD.replace("[[pools]]", cloud).format(root=tmp_path))
    assert CliRunner().invoke(app, ["status", "--config", str(config)]).exit_code == 0
    assert "provider hetzner: " in failure(tmp_path, GOOD.replace("[[pools]]", cloud), "plan")


def test_a_missing_file_is_named() -> None:
    done = CliRunner().invoke(app, ["status", "--config", "/no/such.toml"])
    assert done.exit_code == 1
    assert "/no/such.toml" in done.stderr


def test_a_journal_of_a_newer_version_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "as" / "journal.db"
    Journal.open(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    assert "schema 9999, which this version does not know" in failure(tmp_path, GOOD)


def test_status_of_an_autoscaler_that_never_ran(tmp_path: Path) -> None:
    config = tmp_path / "as.toml"
    config.write_text(GOOD.format(root=tmp_path))
    done = CliRunner().invoke(app, ["status", "--config", str(config)])
    assert (done.exit_code, done.stdout) == (0, "running: no\n")


def test_doctor_hears_that_the_providers_load() -> None:
    rows = {row.name: row for row in checks()}
    assert rows["provider local"].verdict is Verdict.OK
