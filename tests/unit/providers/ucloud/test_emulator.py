"""The emulator is as its cloud is: what tests over it prove hangs on that."""

import json
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from providers.base import Phase, Ref
from tests.fakes.booting import Machine
from tests.fakes.ucloud.auth import API_TOKEN, PROJECT
from tests.fakes.ucloud.control import Remote
from tests.fakes.ucloud.lab import FOLDER, Lab, lab, order, phase

ROOT = Path(__file__).resolve().parents[4]
SPECIFICATION = {
    "name": "raw",
    "application": {"name": "vm-ubuntu", "version": "24.04"},
    "product": {"id": "cpu-amd-zen5-4-vcpu", "category": "cpu-amd-zen5", "provider": "ucloud"},
    "replicas": 1,
    "parameters": {"diskSize": {"type": "integer", "value": 50}},
    "labels": {"My/Op": "1"},
}


def ask(account: Lab, method: str, path: str, token: str = API_TOKEN, **given: Any) -> requests.Response:
    headers = {"Authorization": f"Bearer {token}", "Project": PROJECT}
    return requests.request(method, account.url + path, headers=headers, timeout=20, **given)


def submit(account: Lab, *specifications: dict[str, Any]) -> requests.Response:
    return ask(account, "POST", "/api/jobs", json={"items": list(specifications)})


def retrieve(account: Lab, job_id: str) -> Any:
    return ask(account, "GET", "/api/jobs/retrieve", params={"id": job_id}).json()


# -- the API ----------------------------------------------------------------------------------------------------------


def test_errors_have_the_shape_of_core(account: Lab) -> None:
    unknown = ask(account, "GET", "/api/jobs/retrieve", params={"id": "1"})
    assert unknown.status_code == 403
    assert unknown.json() == {
        "statusCode": 403,
        "why": "Write permission is required",
        "errorCode": "",
        "detailedCode": 0,
    }
    assert ask(account, "GET", "/api/jobs/browse", token="guess").json()["why"] == "Forbidden"
    nowhere = ask(account, "GET", "/api/nothing")
    assert (nowhere.status_code, nowhere.text) == (404, "404 page not found\n")
    assert ask(account, "POST", "/api/jobs", data=b"{").json()["why"] == "Invalid request supplied"


def test_a_job_comes_back_as_core_keeps_it(account: Lab) -> None:
    job_id = submit(account, SPECIFICATION).json()["responses"][0]["id"]
    (plain,) = ask(account, "GET", "/api/jobs/browse", params={"filterLabels.MY/OP": "1"}).json()["items"]
    assert plain["specification"]["labels"] == {"my/op": "1"}
    assert "ucMetricSampleRate" in plain["specification"]["parameters"]
    assert len(plain["specification"]["parameters"]["diskSize"]) == 15
    assert plain["updates"] == []
    assert retrieve(account, job_id)["updates"] != []


def test_a_bulk_order_that_fails_leaves_what_it_made(account: Lab) -> None:
    bad = {**SPECIFICATION, "product": {"id": "x", "category": "x", "provider": "x"}}
    assert submit(account, SPECIFICATION, bad).status_code == 400
    found = ask(account, "GET", "/api/jobs/browse", params={"filterLabels.my/op": "1"}).json()["items"]
    assert len(found) == 1


def test_one_unknown_job_fails_a_whole_terminate_and_success_has_no_ids(account: Lab) -> None:
    job_id = submit(account, SPECIFICATION).json()["responses"][0]["id"]
    both = ask(account, "POST", "/api/jobs/terminate", json={"items": [{"id": job_id}, {"id": "1"}]})
    assert (both.status_code, both.json()["why"]) == (404, "Permission denied or job not found (1)")
    account.remote.advance(10)
    assert account.remote.state(job_id) == "IN_QUEUE"
    one = ask(account, "POST", "/api/jobs/terminate", json={"items": [{"id": job_id}]})
    assert one.json() == {"responses": [{}]}


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"application": {"name": "vm-plan9", "version": "4"}}, 400, "Unknown application"),
        ({"sshEnabled": True}, 400, "This application does not support SSH but it is required"),
        ({"replicas": 0}, 400, "You must request at least one replica"),
        ({"labels": {"a": "1", "A": "2"}}, 400, "Invalid labels supplied"),
    ],
)
def test_what_core_refuses(account: Lab, change: dict[str, Any], status: int, why: str) -> None:
    answer = submit(account, {**SPECIFICATION, **change})
    assert (answer.status_code, answer.json()["why"]) == (status, why)


def test_sorting_turns_the_cursor_into_an_offset_over_live_data(account: Lab) -> None:
    params: dict[str, Any] = {"sortBy": "createdAt", "sortDirection": "descending", "itemsPerPage": 2}
    first = ask(account, "GET", "/api/jobs/browse", params=params).json()
    submit(account, SPECIFICATION)
    account.remote.advance(1)
    second = ask(account, "GET", "/api/jobs/browse", params=params | {"next": first["next"]}).json()
    assert second["items"][0]["id"] == first["items"][1]["id"]


def test_labels_that_change_before_the_first_start_are_undone(account: Lab) -> None:
    job_id = submit(account, SPECIFICATION).json()["responses"][0]["id"]
    changed = ask(account, "POST", "/api/jobs/updateLabels", json={"items": [{"id": job_id, "labels": {"new": "1"}}]})
    assert changed.json() == {}
    account.settle(lambda: account.remote.state(job_id) == "RUNNING")
    labels = account.remote.truth()["jobs"][job_id]["labels"]
    assert labels.keys() == {"my/op", "ucloud.dk/service-ip-address"}


def test_virtual_machines_cannot_be_extended(account: Lab) -> None:
    assert ask(account, "POST", "/api/jobs/extend", json={"items": []}).status_code == 400


def test_a_full_last_page_of_products_is_followed_by_an_empty_one(account: Lab) -> None:
    params: dict[str, Any] = {"itemsPerPage": 5}
    first = ask(account, "GET", "/api/products/v2/browse", params=params).json()
    assert len(first["items"]) == 5
    last = ask(account, "GET", "/api/products/v2/browse", params=params | {"next": first["next"]}).json()
    assert (last["items"], last["next"]) == ([], None)


def test_an_api_token_is_shown_once_and_ends(account: Lab) -> None:
    now_ms = account.remote.truth()["now"] * 1000
    made = ask(account, "POST", "/api/tokens", json={"title": "t", "expiresAt": now_ms + 60_000}).json()
    token = made["status"]["token"]
    assert ask(account, "GET", "/api/accounting/v2/browseWallets", token=token).ok
    account.remote.advance(61)
    assert ask(account, "GET", "/api/accounting/v2/browseWallets", token=token).status_code == 403


# -- the cluster ------------------------------------------------------------------------------------------------------


def test_machines_start_one_after_the_other_and_only_running_time_is_charged(account: Lab, remote: Remote) -> None:
    provider = account.provider()
    ids = [provider.create(order(number)).id for number in range(5)]
    account.settle(lambda: all(phase(provider, each) is Phase.RUNNING for each in ids))
    begun = [retrieve(account, each)["status"]["startedAt"] for each in ids]
    assert len(set(begun)) == 5
    before = remote.truth()["billed_seconds"]
    remote.advance(3600)
    for each in ids:
        provider.delete(Ref(id=each))
    after = remote.truth()["billed_seconds"]
    assert all(abs(after[each] - before.get(each, 0.0) - 3600) <= 60 for each in ids)
    remote.advance(3600)
    assert remote.truth()["billed_seconds"] == after


def test_a_machine_is_charged_at_its_price(account: Lab, remote: Remote) -> None:
    account.run(account.provider())
    remote.advance(10 * 3600 + 60)
    (wallet,) = ask(account, "GET", "/api/accounting/v2/browseWallets").json()["items"]
    assert wallet["totalUsage"] == 5


def test_poweroff_inside_starts_the_machine_again(account: Lab, remote: Remote) -> None:
    provider = account.provider()
    made = account.run(provider)
    remote.ask("job", do="power_off", id=made.id)
    remote.advance(1.5)
    assert remote.state(made.id) == "SUSPENDED"
    account.settle(lambda: remote.state(made.id) == "RUNNING")


def test_the_same_seed_gives_the_same_world() -> None:
    def life() -> Any:
        with lab(seed=7) as account:
            provider = account.provider()
            for number in range(3):
                provider.create(order(number))
            account.remote.advance(300)
            return account.remote.truth()

    assert life() == life()


# -- what runs inside -------------------------------------------------------------------------------------------------


class Recorder:
    """A booter that records its calls."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[str, str, Any]] = queue.SimpleQueue()

    def address(self, name: str) -> str | None:
        return "127.0.0.9"

    def boot(self, machine: Machine) -> None:
        self.calls.put(("boot", machine.name, machine))

    def stop(self, name: str) -> None:
        self.calls.put(("stop", name, None))

    def next(self) -> tuple[str, str, Any]:
        return self.calls.get(timeout=20)


@pytest.fixture
def booter() -> Recorder:
    return Recorder()


@pytest.fixture
def booting(booter: Recorder) -> Iterator[Lab]:
    with lab(booter=booter) as account:
        account.remote.ask("files", **{f"{FOLDER}/init.sh": "echo hello", f"{FOLDER}/sub/wheel": "w", "/12/other": "o"})
        yield account


def test_a_machine_boots_with_its_script_its_files_and_its_user_data(booting: Lab, booter: Recorder) -> None:
    provider = booting.provider()
    made = booting.run(provider, user_data='{"token": "once"}')
    booting.remote.advance(60)
    what, name, guest = booter.next()
    assert (what, name) == ("boot", made.name)
    assert (guest.user_data, guest.ipv4, guest.script) == ('{"token": "once"}', "127.0.0.9", "echo hello")
    assert guest.files == {"/work/ab12/init.sh": "echo hello", "/work/ab12/sub/wheel": "w"}
    seen = provider.get(Ref(id=made.id))
    assert seen is not None
    assert seen.address == "127.0.0.9"
    provider.delete(Ref(id=made.id))
    assert booter.next()[:2] == ("stop", made.name)


def test_the_script_runs_once_for_a_disk(booting: Lab, booter: Recorder) -> None:
    made = booting.run(booting.provider())
    booting.remote.advance(60)
    assert booter.next()[2].script == "echo hello"
    booting.remote.ask("job", do="power_off", id=made.id)
    assert booter.next()[0] == "stop"
    booting.remote.advance(120)
    assert booter.next()[2].script == ""


@pytest.mark.parametrize("name", ["ucloud.dk/init-script", "ucloud.dk/initscript"])
def test_either_name_of_the_label_starts_the_script(booting: Lab, booter: Recorder, name: str) -> None:
    booting.remote.ask("script_label", name=name)
    booting.run(booting.provider())
    booting.remote.advance(60)
    assert booter.next()[2].script == "echo hello"


def test_a_missing_script_is_silent(booting: Lab, booter: Recorder) -> None:
    provider = booting.provider(init_script="absent.sh")
    made = booting.run(provider)
    booting.remote.advance(60)
    assert booter.next()[2].script == ""
    assert booting.remote.truth()["machines"][made.id]["script"] == "missing"
    assert phase(provider, made.id) is Phase.RUNNING


def test_what_runs_is_stopped_at_the_end() -> None:
    recorder = Recorder()
    with lab(booter=recorder) as account:
        made = account.run(account.provider())
        account.remote.advance(60)
        assert recorder.next()[:2] == ("boot", made.name)
    assert recorder.next()[:2] == ("stop", made.name)


def test_it_runs_as_a_process_with_a_pace() -> None:
    command = [sys.executable, "-m", "tests.fakes.ucloud", "--pace", "1000"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())
            remote = Remote(where["control_url"])
            first = remote.truth()["now"]
            headers = {"Authorization": f"Bearer {where['api_token']}"}
            assert requests.get(f"{where['url']}/api/jobs/browse", headers=headers, timeout=20).ok
            while remote.truth()["now"] == first:
                pass
            remote.close()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
