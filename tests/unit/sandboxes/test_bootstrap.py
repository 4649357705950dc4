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
from sandboxes.bootstrap.ucloud import order
from tests.fakes.ucloud.auth import API_TOKEN
from tests.fakes.ucloud.lab import CPU, FOLDER, Lab, lab

OWN = "fleet-gateway"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("API", API_TOKEN)
    monkeypatch.setattr("sandboxes.bootstrap.ucloud.POLL_SECONDS", 0.02)
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


def test_an_operation_is_the_same_at_every_try_and_new_with_every_generation() -> None:
    assert ordered() == ordered()
    assert ordered().operation_id != ordered(2).operation_id
    assert len(ordered().operation_id) == OPERATION_LENGTH
    assert set(ordered().operation_id) <= set(OPERATION_ALPHABET)


def test_the_machine_is_ordered_once_and_out_of_the_fleets_sight(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU]
    assert run([*words, "--within", "0"]) == 1
    assert "run this again to go on" in capsys.readouterr().err
    account.settle(lambda: account.provider(OWN).list().instances[0].phase is Phase.RUNNING)
    assert run(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == OWN
    assert told["phase"] == "running"
    assert told["adopted"] is True
    assert len(account.provider(OWN).list().instances) == 1
    assert account.provider("fleet").list().instances == ()


def test_it_is_ended(account: Lab, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running(account)
    words = ["bootstrap", "ucloud", "--config", str(config), "--delete"]
    assert run([*words, "--within", "0"]) == 1
    account.settle(lambda: account.provider(OWN).list().instances[0].phase is Phase.GONE)
    capsys.readouterr()
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out) == {"deployment": OWN, "phase": "gone"}


def test_an_ended_machine_asks_for_the_next_generation(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(account)
    assert run(["bootstrap", "ucloud", "--config", str(config), "--delete", "--within", "0"]) == 1
    account.settle(lambda: account.provider(OWN).list().instances[0].phase is Phase.GONE)
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU, "--within", "0"]
    assert run(words) == 1
    assert "--generation" in capsys.readouterr().err
    assert run([*words, "--generation", "2"]) == 1
    assert "run this again" in capsys.readouterr().err


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes takes moments."""
    monkeypatch.setattr("sandboxes.bootstrap.ordering.POLL_SECONDS", 0.02)
    monkeypatch.setattr("sandboxes.bootstrap.ordering.SIGHTINGS_SECONDS", 0.05)
    monkeypatch.setattr(UCloudProvider, "caps", replace(UCloudProvider.caps, settle_seconds=0.3))


@pytest.mark.usefixtures("quick")
def test_an_order_whose_answer_was_lost_is_looked_for_and_found(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account.remote.fault("lost_response", "submit")
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU]
    assert run([*words, "--within", "5"]) == 1, "it is not booted here"
    told = capsys.readouterr().err
    assert "it is not known whether the order came through" in told
    assert "seen once more" in told
    assert "run this again to go on" in told
    assert len(account.provider(OWN).list().instances) == account.remote.calls("submit") == 1


@pytest.mark.usefixtures("quick")
def test_an_order_that_never_arrived_is_sent_again_once_that_is_sure(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account.remote.fault("lost_request", "submit")
    assert run(["bootstrap", "ucloud", "--config", str(config), "--product", CPU, "--within", "5"]) == 1
    told = capsys.readouterr().err
    assert told.index("it is not known whether") < told.index("nothing came of it, so it is ordered again")
    assert len(account.provider(OWN).list().instances) == 1


def test_until_it_is_sure_the_next_try_orders_nothing_either(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account.remote.fault("lost_request", "submit")
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU, "--within", "0"]
    for _ in range(3):
        assert run(words) == 1
        told = capsys.readouterr().err
        assert "nothing is ordered until then, so run this again to go on" in told
        assert re.search(r"whether it came through shows 1[12]\d s from now", told)
    assert account.provider(OWN).list().instances == ()
    assert run(["bootstrap", "ucloud", "--config", str(config), "--delete", "--within", "0"]) == 1
    assert "an order was sent" in capsys.readouterr().err
    note = config.with_name("order.toml.sent")
    noted = json.loads(note.read_text())
    note.write_text(json.dumps(noted | {"sent_at": noted["sent_at"] - 121}))
    assert run(["bootstrap", "ucloud", "--config", str(config), "--delete", "--within", "0"]) == 0
    assert not note.exists()


def test_an_order_that_cannot_be_noted_is_not_sent(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = config.with_name("order.toml.sent")
    note.mkdir()
    words = ["bootstrap", "ucloud", "--config", str(config), "--product", CPU]
    assert run(words) == 1
    assert "order.toml.sent" in capsys.readouterr().err
    assert account.provider(OWN).list().instances == ()


def test_a_refused_order_is_told_and_leaves_no_note(
    account: Lab, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bootstrap", "ucloud", "--config", str(config), "--product", "no-such"]) == 1
    assert "no such product" in capsys.readouterr().err
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
def test_a_wrong_file_is_named(tmp_path: Path, text: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "order.toml"
    path.write_text(text)
    assert run(["bootstrap", "ucloud", "--config", str(path), "--product", CPU]) != 0
    assert problem in capsys.readouterr().err


def test_the_product_has_to_be_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "ucloud", "--config", str(config)]) == 2
    assert "--product" in capsys.readouterr().err
