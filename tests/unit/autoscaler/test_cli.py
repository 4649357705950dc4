"""The commands: what stops one is a single sentence with exit code 1; those that only look change nothing."""

import json
import os
import sqlite3
from pathlib import Path

import click
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from typer.testing import CliRunner, Result

from autoscaler.cli import app, checks
from autoscaler.errors import AutoscalerError
from autoscaler.main import read_journal
from autoscaler.settings import AutoscalerSettings
from autoscaler.store.db import MIGRATIONS
from autoscaler.store.journal import Journal
from gateway.wire.system import Verdict

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
    assert not (tmp_path / "vms").exists()
    return message_of(done)


def message_of(done: Result) -> str:
    """Return the one sentence that stopped a command."""
    assert isinstance(done.exception, click.ClickException), done.output
    assert done.exception.exit_code == 1
    assert "\n" not in done.exception.message
    return done.exception.message


@pytest.fixture(autouse=True)
def token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('{root}/token"', '{root}/none"', "token_file: "),
        ("[providers.local]", "[providers.fog]", "pools: cpu names the provider 'local'"),
        ("[providers.local]", '[providers.local]\nkind = "fog"', "provider local: "),
        ("root = ", "rot = ", "provider local: local: root: "),
        ('provider = "local"', 'provider = "local"\nmox = 1', "pools.0.mox: "),
        ('gateway_url = "http', 'gateway_url = "ftp', "gateway_url: "),
        ('state_dir = "{root}/as"', 'state_dir = "{root}/token"', "/token cannot be used: "),
        ("[providers.local]", 'database_url = "sqlite:////proc/no.db"\n[providers.local]', "the journal "),
    ],
)
def test_invalid_settings_stop_a_command_with_one_sentence(tmp_path: Path, old: str, new: str, why: str) -> None:
    assert why in failure(tmp_path, GOOD.replace(old, new))


def test_an_empty_token_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    assert failure(tmp_path, GOOD).startswith(f"token_file: {tmp_path}/token is empty")


@pytest.mark.parametrize("content", [b"one\ntwo\n", "t\u2713ken".encode(), b"\xff\xfe"])
def test_a_token_file_without_a_usable_token_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    assert failure(tmp_path, GOOD).startswith(f"token_file: {tmp_path}/token holds no token")


@pytest.mark.parametrize("command", ["run", "plan", "status", "pools"])
def test_a_gpu_pool_of_a_provider_without_gpus_is_refused(tmp_path: Path, command: str) -> None:
    text = GOOD + '[[pools]]\nname = "gpu"\nprovider = "local"\ngpus = 1\n'
    refused = failure(tmp_path, text, command)
    assert refused.startswith("pool gpu: ")
    assert not (tmp_path / "as" / "journal.db").exists()


def test_commands_that_only_read_need_no_cloud_secret(tmp_path: Path) -> None:
    cloud = '[providers.hetzner]\ntoken_env = "NOT_SET_HERE"\n[[pools]]'
    config = tmp_path / "as.toml"
    config.write_text(GOOD.replace("[[pools]]", cloud).format(root=tmp_path))
    assert CliRunner().invoke(app, ["status", "--config", str(config)]).exit_code == 0
    assert "provider hetzner: " in failure(tmp_path, GOOD.replace("[[pools]]", cloud), "plan")


def test_an_unreadable_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "as" / "autoscaler.lock").mkdir(parents=True)
    assert f"{tmp_path}/as/autoscaler.lock" in failure(tmp_path, GOOD, "status")


def test_a_missing_file_is_named() -> None:
    done = CliRunner().invoke(app, ["status", "--config", "/no/such.toml"])
    assert "/no/such.toml" in message_of(done)


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "as" / "journal.db"
    Journal.open(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    assert "schema 9999, which this version does not know" in failure(tmp_path, GOOD)


def output_of(tmp_path: Path, *words: str) -> str:
    """Run a command that only looks, and return what it prints."""
    config = tmp_path / "as.toml"
    config.write_text(GOOD.format(root=tmp_path))
    done = CliRunner().invoke(app, [*words, "--config", str(config)])
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_looking_creates_no_journal(tmp_path: Path) -> None:
    assert output_of(tmp_path, "status") == "running: no\nno instances\n"
    assert output_of(tmp_path, "events") == "nothing has happened yet\n"
    assert "0 of 0–1" in output_of(tmp_path, "pools")
    assert json.loads(output_of(tmp_path, "status", "--json")) == {"running": None, "intents": [], "backoffs": []}
    assert json.loads(output_of(tmp_path, "events", "--json")) == []
    assert json.loads(output_of(tmp_path, "pools", "--json"))[0]["instances"] == 0
    assert not (tmp_path / "as").exists()


def test_pools_shows_offers_without_a_gateway(tmp_path: Path) -> None:
    shown = output_of(tmp_path, "pools")
    assert "available" in shown
    assert "local@here" in shown
    (row,) = json.loads(output_of(tmp_path, "pools", "--json"))
    assert [(offer["type"], offer["location"]) for offer in row["sold"]] == [("local", "here")]
    assert row["problem"] == ""


def test_pools_names_an_offer_that_is_not_sold(tmp_path: Path) -> None:
    config = tmp_path / "as.toml"
    config.write_text(GOOD.format(root=tmp_path) + 'offers = [{ type = "locl", location = "here" }]\n')
    done = CliRunner().invoke(app, ["pools", "--config", str(config)])
    assert "pool cpu: local does not sell locl@here; it sells local@here\n" in done.stdout


def test_pools_fails_when_a_provider_cannot_be_built(tmp_path: Path) -> None:
    text = GOOD.replace('provider = "local"', 'provider = "hetzner"')
    text = text.replace("[[pools]]", '[providers.hetzner]\ntoken_env = "NOT_SET_HERE"\n[[pools]]')
    assert failure(tmp_path, text, "pools").startswith("provider hetzner: ")
    done = CliRunner().invoke(app, ["pools", "--json", "--config", str(tmp_path / "as.toml")])
    assert done.exit_code == 1
    (row,) = json.loads(done.stdout)
    assert row["problem"].startswith("provider hetzner: ")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal that no process has open, with one row."""
    path = tmp_path / "as" / "journal.db"
    path.parent.mkdir()
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, ScriptDirectory.from_config(config).get_bases()[0])
        connection.exec_driver_sql(
            "INSERT INTO intent (operation_id, pool, provider, name, type, location, state, created_at, changed_at,"
            " deadline, attempts, next_try_at, detail, spec, cause) VALUES"
            " ('op', 'cpu', 'local', 'local-cpu-op', 'local', 'here', 'ready', 1, 1, 1, 1, 1, '', '', '')"
        )
    engine.dispose()
    return path


def test_looking_leaves_the_journal_unchanged(tmp_path: Path, journal: Path) -> None:
    before = journal.read_bytes()
    assert "local-cpu-op" in output_of(tmp_path, "status")
    assert "1 of 0–1" in output_of(tmp_path, "pools")
    assert output_of(tmp_path, "events") == "nothing has happened yet\n"
    assert journal.read_bytes() == before


def test_a_journal_of_another_user_is_named(tmp_path: Path) -> None:
    config = tmp_path / "as.toml"
    config.write_text(GOOD.format(root=tmp_path))
    settings = AutoscalerSettings.load(config)
    settings.state_dir.mkdir(mode=0)
    me = os.geteuid()
    if me == 0:  # root may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(AutoscalerError, match="the journal cannot be read"):
            read_journal(settings)
    finally:
        os.seteuid(me)


def test_without_a_gateway_the_plan_is_incomplete(tmp_path: Path) -> None:
    config = tmp_path / "as.toml"
    config.write_text(GOOD.format(root=tmp_path))
    done = CliRunner().invoke(app, ["plan", "--json", "--config", str(config)])
    assert "gateway_url" in message_of(done)
    assert json.loads(done.stdout)["actions"] == []


def test_a_missing_settings_file_names_the_option() -> None:
    assert "--config" in message_of(CliRunner().invoke(app, ["status"]))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nonsense", "database_url: Could not parse"),
        ("oracle+no://x/y", "database_url: "),
        (
            "postgresql+psycopg://me:secret@127.0.0.1:1/fleet",
            "the journal postgresql+psycopg://me:***@127.0.0.1:1/fleet",
        ),
    ],
)
@pytest.mark.parametrize("words", ["run", "plan", "status", "events", "pools"])
def test_an_unusable_database_is_named_without_its_password(tmp_path: Path, url: str, why: str, words: str) -> None:
    said = failure(tmp_path, GOOD.replace("[providers.local]", f'database_url = "{url}"\n[providers.local]'), words)
    assert why in said
    assert "secret" not in said.replace(str(tmp_path), "")


def test_doctor_checks_that_providers_load() -> None:
    rows = {row.name: row for row in checks()}
    assert rows["provider local"].verdict is Verdict.OK
