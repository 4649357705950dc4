"""A gateway that is killed in the middle of calls: whatever took effect has a line, with an outcome or as unknown."""

import json
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests

from gateway.client import GatewayClient
from tests.gateway_process import gateway_process, new_token, sandboxes
from tests.integration.small_fleet import SMALL, small_fleet
from tests.waiting import wait_until

CREATE = "/v1/sandboxes"
EXEC = "/v1/sandboxes/{sandbox_id}/exec"


def printed(state_dir: Path) -> list[dict[str, Any]]:
    run = sandboxes("audit", "--json", "--state-dir", str(state_dir))
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def unknown(entries: list[dict[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    return [(entry["route"], entry["target"]) for entry in entries if entry.get("outcome") == "unknown"]


def ignored(call: threading.Thread) -> threading.Thread:
    call.start()
    return call


def test_calls_that_a_killed_gateway_was_in_are_there_as_unknown(tmp_path: Path) -> None:
    with small_fleet(tmp_path) as fleet:
        assert fleet.create("there").status_code == 201
        controls = fleet.node.runtime.controls
        controls.create_gate, controls.exec_gate = threading.Event(), threading.Event()

        def send(path: str, body: dict[str, Any]) -> None:
            headers = {"X-UCloud-Sandbox-Token": fleet.client_token}
            with pytest.raises(requests.RequestException):
                requests.post(fleet.gateway.url + path, json=body, headers=headers, timeout=30)

        calls = [
            ignored(threading.Thread(target=send, args=("/v1/sandboxes", {"id": "half-made", **SMALL}))),
            ignored(
                threading.Thread(
                    target=send, args=("/v1/sandboxes/there/exec?wait_seconds=20", {"command": ["touch", "/x"]})
                )
            ),
        ]
        expected = [(CREATE, {"sandbox_id": "half-made"}), (EXEC, {"sandbox_id": "there"})]
        wait_until(lambda: len(unknown(printed(fleet.gateway.state_dir))) == 2, 20)
        fleet.gateway.end(signal.SIGKILL)
        for call in calls:
            call.join(20)
        controls.create_gate.set()
        controls.exec_gate.set()
        assert sorted(unknown(printed(fleet.gateway.state_dir))) == sorted(expected)
        with gateway_process(fleet.gateway.state_dir, port=int(fleet.gateway.url.rpartition(":")[2])) as again:
            page = requests.get(
                again.url + "/v1/audit?limit=1000",
                headers={"Authorization": f"Bearer {fleet.operator_token}"},
                timeout=20,
            ).json()
            assert sorted(unknown(page["entries"])) == sorted(expected)
            assert not any(entry.get("outcome") == "pending" for entry in page["entries"])
            assert unknown(printed(fleet.gateway.state_dir)) == unknown(page["entries"])
            wait_until(
                lambda: GatewayClient(again.url, fleet.operator_token).sandbox("half-made").state == "running", 20
            )


def test_whatever_took_effect_before_a_kill_has_a_line(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    secret = new_token(state_dir, "operator")
    headers = {"Authorization": f"Bearer {secret}"}
    done = 0

    def make(url: str, name: str, answered: threading.Semaphore) -> None:
        with requests.Session() as session:
            for number in range(10_000):
                body = {"id": f"{name}-{number}", **SMALL}
                try:
                    session.post(f"{url}/v1/sandboxes?wait_seconds=0", json=body, headers=headers, timeout=20)
                    token = {"name": f"{name}-{number}", "scope": "client"}
                    session.post(f"{url}/v1/tokens", json=token, headers=headers, timeout=20)
                except requests.RequestException:
                    return
                answered.release()

    for life in range(3):
        answered = threading.Semaphore(0)
        with gateway_process(state_dir) as gateway:
            callers = [
                ignored(threading.Thread(target=make, args=(gateway.url, f"life-{life}-{one}", answered)))
                for one in range(4)
            ]
            for _ in range(12):
                assert answered.acquire(timeout=20)
            gateway.end(signal.SIGKILL)
            for caller in callers:
                caller.join(20)
        done += 12
    with gateway_process(state_dir) as gateway:
        operator = GatewayClient(gateway.url, secret)
        made = {sandbox.id for sandbox in operator.sandboxes()}
        tokens = [record for record in operator.tokens() if record.name != "test-operator"]
    written = printed(state_dir)
    assert len(made) >= done
    assert made <= {entry["target"].get("sandbox_id") for entry in written}
    routes = Counter(entry["route"] for entry in written if entry.get("status") == 201 or entry.get("outcome"))
    assert len(tokens) <= routes["/v1/tokens"]
    known = {entry["target"].get("token_id") for entry in written}
    unknowns = sum(entry.get("outcome") == "unknown" and entry["route"] == "/v1/tokens" for entry in written)
    assert len([record for record in tokens if record.id not in known]) <= unknowns
