"""The emulator keeps to the API's rules; a test against it proves no more than that."""

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import hcloud
import pytest

from tests.fakes.booting import Machine
from tests.fakes.hetzner.control import Control
from tests.fakes.hetzner.emulator import emulator
from tests.fakes.hetzner.state import BadSelectorError, selector
from tests.unit.providers.hetzner.lab import Lab, order

LABELS = {"role": "node", "x.y/z": "1", "empty": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("role==node", True),
        ("role=node", True),
        ("role!=node", False),
        ("other!=node", True),
        ("role", True),
        ("!role", False),
        ("!other", True),
        ("role in (node,builder)", True),
        ("role in (builder)", False),
        ("role notin (builder, other)", True),
        ("x.y/z==1,role in (a,node),!other", True),
        ("x.y/z==1,other", False),
        ("empty==", True),
        ("", True),
    ],
)
def test_selectors(text: str, expected: bool) -> None:
    assert selector(text)(LABELS) is expected


@pytest.mark.parametrize("text", ["a b", "==x", "a in b", "role==x y", "-a"])
def test_malformed_selectors_are_refused(text: str) -> None:
    with pytest.raises(BadSelectorError):
        selector(text)


def get(cloud: Control, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Authorization": f"Bearer {cloud.token}", "Connection": "close"}
    request = urllib.request.Request(f"{cloud.api}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_hcloud_itself_understands_every_answer(lab: Lab) -> None:
    """Its typed clients read fields that the provider does not."""
    network = lab.cloud.add("networks", name="n", subnets=[{"type": "cloud", "ip_range": "10.0.0.0/16"}])
    volume = lab.cloud.add("volumes", name="v")
    for kind in ("floating_ips", "primary_ips", "firewalls"):
        lab.cloud.add(kind, name="a")
    client = hcloud.Client(lab.cloud.token, api_endpoint=lab.cloud.api, timeout=5)
    made = client.servers.create(
        name="a",
        server_type=client.server_types.get_by_name("cx33"),
        image=client.images.get_by_name_and_architecture("debian-12", "x86"),
        location=client.locations.get_by_name("fsn1"),
        ssh_keys=client.ssh_keys.get_all(),
        networks=[client.networks.get_by_id(network)],
        labels={"a": "b"},
    )
    lab.advance(60)
    for action in (made.action, *made.next_actions):
        action.wait_until_finished(max_retries=1)
    (server,) = client.servers.get_all(label_selector="a==b")
    assert (server.status, server.private_net[0].network.id) == ("running", network)
    assert server.public_net.primary_ipv4.ip == server.public_net.ipv4.ip
    found = client.servers.get_by_name("a")
    assert found is not None
    assert found.id == server.id
    assert client.volumes.get_by_id(volume).server is None
    for rows in (client.firewalls, client.floating_ips, client.primary_ips, client.images, client.server_types):
        assert rows.get_all()
    server.update(labels={"c": "d"})
    assert client.servers.get_by_id(server.id).labels == {"c": "d"}
    server.delete()
    lab.advance(60)
    assert client.servers.get_all() == []


ACTION = "id command status progress started finished resources error"
SERVER = (
    "id name status created public_net private_net server_type location image iso rescue_enabled locked backup_window "
    "outgoing_traffic ingoing_traffic included_traffic protection labels volumes load_balancers primary_disk_size "
    "placement_group"
)
TYPE = (
    "id name description category cores memory disk cpu_type storage_type architecture prices locations deprecated "
    "deprecation"
)


def test_answers_have_the_keys_of_the_reference(lab: Lab) -> None:
    fine = {"name": "a", "server_type": "cx33", "image": "debian-12", "location": "fsn1", "ssh_keys": ["fleet"]}
    status, made = get(lab.cloud, "/servers", "POST", fine)
    assert (status, set(made)) == (201, {"server", "action", "next_actions", "root_password"})
    assert made["root_password"] is None, "there is a key to log in with"
    assert set(made["server"]) == set(SERVER.split()), "datacenter was removed in July 2026"
    for action in (made["action"], *made["next_actions"]):
        assert set(action) == set(ACTION.split())
    (kind, *_) = get(lab.cloud, "/server_types")[1]["server_types"]
    assert set(kind) >= set(TYPE.split())
    assert set(kind["locations"][0]) == {"id", "name", "available", "recommended", "deprecation"}
    price = kind["prices"][0]
    assert set(price) == {"location", "price_hourly", "price_monthly", "included_traffic", "price_per_tb_traffic"}
    assert all(isinstance(amount, str) for amount in price["price_hourly"].values()), "decimal numbers are text"
    status, refused = get(lab.cloud, "/servers/1")
    assert (status, set(refused), set(refused["error"])) == (404, {"error"}, {"code", "message", "details"})


def test_pages(lab: Lab) -> None:
    for number in range(60):
        lab.cloud.add("volumes", name=f"v{number}")
    status, answer = get(lab.cloud, "/volumes")
    assert (status, len(answer["volumes"])) == (200, 25)
    assert answer["meta"]["pagination"] == {
        "page": 1,
        "per_page": 25,
        "previous_page": None,
        "next_page": 2,
        "last_page": 3,
        "total_entries": 60,
    }
    status, answer = get(lab.cloud, "/volumes?per_page=50&page=2&sort=id:desc")
    assert [row["name"] for row in answer["volumes"]] == [f"v{number}" for number in reversed(range(10))]
    assert get(lab.cloud, "/volumes?per_page=51")[0] == 422
    assert len(get(lab.cloud, "/volumes?name=v1")[1]["volumes"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "a_b"}, 422, "invalid_input"),
        ({"server_type": "cx11"}, 422, "invalid_input"),
        ({"location": "ash"}, 422, "invalid_input"),
        ({"image": "debian-3"}, 404, "not_found"),
        ({"labels": {"a": "b c"}}, 422, "invalid_input"),
        ({"user_data": "x" * 32769}, 422, "invalid_input"),
        ({"ssh_keys": ["nobody's"]}, 404, "not_found"),
        ({"networks": [1]}, 404, "not_found"),
    ],
)
def test_creates_that_are_refused(lab: Lab, body: dict[str, Any], status: int, code: str) -> None:
    fine = {"name": "a", "server_type": "cx33", "image": "debian-12", "location": "fsn1"}
    got, answer = get(lab.cloud, "/servers", "POST", {**fine, **body})
    assert (got, answer["error"]["code"]) == (status, code)
    assert get(lab.cloud, "/servers", "POST", fine)[0] == 201
    got, answer = get(lab.cloud, "/servers", "POST", fine)
    assert (got, answer["error"]["code"]) == (409, "uniqueness_error")


def test_actions_and_states_take_their_time(lab: Lab) -> None:
    fine = {"name": "a", "server_type": "cx33", "image": "debian-12"}
    _, made = get(lab.cloud, "/servers", "POST", fine)
    assert made["server"]["status"] == "initializing"
    assert made["server"]["locked"]
    assert made["root_password"] is not None
    assert [action["command"] for action in (made["action"], *made["next_actions"])] == [
        "create_server",
        "start_server",
    ]
    assert get(lab.cloud, f"/servers/{made['server']['id']}/actions/reboot", "POST", {})[1]["error"]["code"] == "locked"
    lab.advance(13)
    _, action = get(lab.cloud, f"/actions/{made['next_actions'][0]['id']}")
    assert action["action"]["status"] == "success"
    _, answer = get(lab.cloud, f"/servers/{made['server']['id']}")
    assert (answer["server"]["status"], answer["server"]["locked"]) == ("running", False)
    assert get(lab.cloud, "/datacenters")[0] == 410


def test_hours_are_billed_as_they_begin(lab: Lab) -> None:
    lab.provider().create(order())
    lab.advance(3601)
    assert lab.cloud.audit()["servers"][0]["billed_seconds"] == 7200


def test_the_bucket_refills(lab: Lab) -> None:
    lab.cloud.ask("budget", left=1)
    assert get(lab.cloud, "/volumes")[0] == 200
    assert get(lab.cloud, "/volumes")[0] == 429
    lab.cloud.advance(2)
    assert get(lab.cloud, "/volumes")[0] == 200


def test_an_unknown_knob_fault_or_verb_is_refused(lab: Lab) -> None:
    for call in (
        lambda: lab.cloud.knobs(no_such=1),
        lambda: lab.cloud.fault("no such"),
        lambda: lab.cloud.ask("no_such"),
        lambda: lab.cloud.ask("server", name="nobody"),
    ):
        with pytest.raises(ValueError):
            call()


class Recorder:
    """A booter that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.heard = threading.Condition()

    def address(self, name: str) -> str | None:
        return "127.9.9.9"

    def boot(self, machine: Machine) -> None:
        self._note("boot", machine)

    def stop(self, name: str) -> None:
        self._note("stop", name)

    def _note(self, what: str, value: Any) -> None:
        with self.heard:
            self.calls.append((what, value))
            self.heard.notify_all()

    def wait(self, count: int) -> list[tuple[str, Any]]:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.calls) >= count, 10)
            return list(self.calls)


def test_a_booter_boots_and_stops_what_runs() -> None:
    booter = Recorder()
    with emulator(booter=booter) as cloud:
        lab = Lab(cloud)
        made = lab.provider().create(order())
        assert made.address == "127.9.9.9"
        lab.advance(60)
        ((what, machine),) = booter.wait(1)
        assert (what, machine.name, machine.user_data) == ("boot", made.name, "#cloud-config\n")
        assert (machine.ipv4, machine.cores, machine.location) == ("127.9.9.9", 4, "fsn1")
        cloud.ask("server", name=made.name, status="off")
        cloud.ask("server", name=made.name, status="running")
        assert [what for what, _ in booter.wait(3)] == ["boot", "stop", "boot"]
        lab.provider().create(order(2))
        lab.advance(60)
        booter.wait(4)
    assert sorted(booter.calls[4:]) == [("stop", "unit-cpu-op1"), ("stop", "unit-cpu-op2")]


def test_as_a_process_it_boots_commands_and_ends_them(tmp_path: Path) -> None:
    write = f'{sys.executable} -c "import sys, time; print(open(sys.argv[1]).read(), flush=True); time.sleep(600)"'
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.fakes.hetzner",
            "--pace",
            "100",
            "--root",
            str(tmp_path),
            "--boot",
            write + " ${user_data}",
        ],
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        lab = Lab(Control(started["control"], started["api"], started["token"]))
        try:
            lab.provider().create(order(user_data="hello"))
            log = tmp_path / "unit-cpu-op1" / "log"
            ready = threading.Event()
            for _ in range(500):
                if log.exists() and log.read_text().startswith("hello"):
                    break
                ready.wait(0.02)
            assert log.read_text().startswith("hello")
            assert lab.cloud.here()[0]["status"] == "running"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
