"""`sandboxes bootstrap ucloud` against the emulator, as an operator runs it."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.core.naming import OPERATION_ALPHABET, OPERATION_LENGTH
from providers.base import Create, Phase
from providers.ucloud.provider import UCloudProvider
from sandboxes.app import run
from sandboxes.bootstrap import order
from tests.fakes.ucloud.auth import API_TOKEN
from tests.fakes.ucloud.lab import CPU, FOLDER, Lab, lab

OWN = "fleet-gateway"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("API", API_TOKEN)
    monkeypatch.setattr("sandboxes.bootstrap.POLL_SECONDS", 0.02)
    with lab() as made:
        yield made


@pytest.fixture
def config(tmp_path: Path, account: Lab) -> Path:
    path = tmp_path / "order.toml"
    table = {"base_url": account.url, "api_token_env": "API", "bootstrap_folder": FOLDER}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path.write_text("\n".join(['deployment = "fleet"', "[providers.ucloud]", *lines]))
    return path


def ordered(generation: int = 1) -> Create:
    return order(OWN, generation, CPU, "ucloud", "vm-ubuntu/24.04")


def running(account: Lab) -> None:
    """The machine of the first generation, ordered and booted: the command's own wait is in real time."""
    provider = account.provider(OWN)
    made = provider.create(ordered())
    account.settle(lambda: provider.list().instances[0].phase is Phase.RUNNING)
    assert made.name == OWN


def test_operation_is_stable_and_new_with_every_generation() -> None:
    assert ordered() == ordered()
    assert ordered().operation_id != ordered(2).operation_id
    assert len(ordered().operation_id) == OPERATION_LENGTH
    assert set(ordered().operation_id) <= set(OPERATION_ALPHABET)


def test_machine_is_ordered_once_in_a_deployment_of_its_own(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU]
    assert run([*words, "--within", "0"]) == 1
    capsys.readouterr()
    account.settle(lambda: account.provider(OWN).list().instances[0].phase is Phase.RUNNING)
    assert run(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["name"], printed["phase"], printed["adopted"]) == (OWN, "running", True)
    assert len(account.provider(OWN).list().instances) == 1
    assert account.provider("fleet").list().instances == ()


def test_delete_ends_the_machine(account: Lab, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running(account)
    words = ["bootstrap", "ucloud", "--config", str(config), "--delete"]
    assert run([*words, "--within", "0"]) == 1
    account.settle(lambda: account.provider(OWN).list().instances[0].phase is Phase.GONE)
    capsys.readouterr()
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out) == {"deployment": OWN, "phase": "gone"}


def test_ended_machine_asks_for_the_next_generation(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(account)
    assert run(["bootstrap", "ucloud", "--config", str(config), "--delete", "--within", "0"]) == 1
    account.settle(lambda: account.provider(OWN).list().instances[0].phase is Phase.GONE)
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU, "--within", "0"]
    assert run(words) == 1
    assert "--generation" in capsys.readouterr().err
    assert run([*words, "--generation", "2"]) == 1
    alive = [each for each in account.provider(OWN).list().instances if each.phase is not Phase.GONE]
    assert len(alive) == 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what takes minutes take moments."""
    monkeypatch.setattr("sandboxes.bootstrap.POLL_SECONDS", 0.02)
    monkeypatch.setattr("sandboxes.bootstrap.SIGHTINGS_SECONDS", 0.05)
    monkeypatch.setattr(UCloudProvider, "caps", replace(UCloudProvider.caps, settle_seconds=0.3))


@pytest.mark.usefixtures("quick")
def test_order_with_lost_response_is_found_and_not_repeated(account: Lab, config: Path) -> None:
    account.remote.fault("lost_response", "submit")
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU]
    assert run([*words, "--within", "5"]) == 1, "it is not booted here"
    assert not config.with_name("order.toml.sent").exists()
    assert len(account.provider(OWN).list().instances) == account.remote.calls("submit") == 1


@pytest.mark.usefixtures("quick")
def test_order_that_never_arrived_is_sent_again(account: Lab, config: Path) -> None:
    account.remote.fault("lost_request", "submit")
    assert run(["bootstrap", "ucloud", "--config", str(config), "--product", CPU, "--within", "5"]) == 1
    assert len(account.provider(OWN).list().instances) == 1


def test_nothing_is_ordered_while_an_outcome_is_unknown(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account.remote.fault("lost_request", "submit")
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU, "--within", "0"]
    for _ in range(3):
        assert run(words) == 1
        assert re.search(r" 1[12]\d s from now", capsys.readouterr().err)
    assert account.provider(OWN).list().instances == ()
    assert run(["bootstrap", "ucloud", "--config", str(config), "--delete", "--within", "0"]) == 1
    note = config.with_name("order.toml.sent")
    noted = json.loads(note.read_text())
    note.write_text(json.dumps(noted | {"sent_at": noted["sent_at"] - 121}))
    assert run(["bootstrap", "ucloud", "--config", str(config), "--delete", "--within", "0"]) == 0
    assert not note.exists()


def test_order_that_cannot_be_noted_is_not_sent(account: Lab, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = config.with_name("order.toml.sent")
    note.mkdir()
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU]
    assert run(words) == 1
    assert "order.toml.sent" in capsys.readouterr().err
    assert account.provider(OWN).list().instances == ()


def test_refused_order_leaves_no_note(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "ucloud", "--config", str(config), "--product", "no-such"]) == 1
    assert "no-such" in capsys.readouterr().err
    assert not config.with_name("order.toml.sent").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "deployment"),
        ('deployment = "fleet"', "[providers.ucloud]"),
        ("deployment = ", "order.toml"),
        ('deployment = "fleet"\n[providers.ucloud]\nwrong = 1', "wrong"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "order.toml"
    path.write_text(text)
    assert run(["bootstrap", "ucloud", "--config", str(path), "--product", CPU]) != 0
    assert problem in capsys.readouterr().err


def test_product_is_required(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "ucloud", "--config", str(config)]) == 2
    assert "--product" in capsys.readouterr().err
