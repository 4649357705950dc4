"""Execs and files beside a client that pauses and resumes the same sandbox all the time: every one gets its answer."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from gateway.wire import limits
from tests.integration.small_fleet import SmallFleet, small_fleet
from tests.waiting import wait_until

CLIENTS = 40
ROUNDS = 6


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path_factory.mktemp("pauses")) as running:
        assert running.create("box").status_code == 201
        yield running


Send = Callable[..., requests.Response]


def sender(fleet: SmallFleet, session: requests.Session) -> Send:
    session.headers["X-UCloud-Sandbox-Token"] = fleet.client_token

    def send(method: str, path: str, **options: object) -> requests.Response:
        return session.request(method, f"{fleet.gateway.url}/v1/sandboxes/box/{path}", timeout=30, **options)  # type: ignore[arg-type]

    return send


def echo(send: Send, name: str) -> str:
    """Run a command, and return what was wrong with its answer."""
    answer = send("POST", "exec?wait_seconds=20", json={"command": ["echo", name]})
    if answer.status_code != 201:
        return f"exec: {answer.status_code} {answer.text}"
    body = answer.json()
    output = "".join(event["data"] for event in body["events"] if event["stream"] == "stdout")
    right = output == f"{name}\n" and body["session"]["exit_code"] == 0
    return "" if right else f"exec: {answer.text}"


def put_and_get(send: Send, name: str) -> str:
    """Write a file and read it again, and return what was wrong."""
    data = os.urandom(100_000)
    put = send("PUT", "files", params={"path": name}, data=data)
    if put.status_code != 200:
        return f"put: {put.status_code} {put.text}"
    got = send("GET", "files", params={"path": name})
    return "" if got.content == data else f"get: {got.status_code} {got.text[:300]}"


def pausing(fleet: SmallFleet, stop: threading.Event) -> list[tuple[str, int, str]]:
    """Pause and resume until ``stop``; return what was refused for good."""
    refused = []
    with requests.Session() as session:
        send = sender(fleet, session)
        while not stop.is_set():
            for order in ("pause", "resume"):
                answer = send("POST", order)
                if answer.status_code != 200 and not (answer.json()["retryable"] and answer.headers["Retry-After"]):
                    refused.append((order, answer.status_code, answer.text))
    return refused


def test_calls_beside_pauses_are_neither_refused_nor_wrong(fleet: SmallFleet) -> None:
    stop = threading.Event()

    def client(number: int) -> list[str]:
        with requests.Session() as session:
            send = sender(fleet, session)
            kinds = (echo, put_and_get)
            return [
                wrong
                for turn in range(ROUNDS)
                if (wrong := kinds[(number + turn) % 2](send, f"client-{number}-{turn}"))
            ]

    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        pauser = pool.submit(pausing, fleet, stop)
        clients = [pool.submit(client, number) for number in range(CLIENTS)]
        wrong = [sentence for one in clients for sentence in one.result()]
        stop.set()
        assert wrong == [], f"{len(wrong)} of {CLIENTS * ROUNDS}"
        assert pauser.result() == []


def test_a_pause_waits_for_the_files_on_their_way(fleet: SmallFleet) -> None:
    half, going = threading.Event(), threading.Event()

    class Body:
        def __len__(self) -> int:
            return 4 * limits.MIB

        def __iter__(self) -> Iterator[bytes]:
            yield bytes(2 * limits.MIB)
            going.set()
            assert half.wait(20)
            yield bytes(2 * limits.MIB)

    with ThreadPoolExecutor(3) as pool, requests.Session() as session, requests.Session() as other:
        send, order = sender(fleet, session), sender(fleet, other)
        put = pool.submit(send, "PUT", "files", params={"path": "large"}, data=Body())
        assert going.wait(20)
        pause = pool.submit(order, "POST", "pause")
        assert echo(sender(fleet, requests.Session()), "meanwhile") == "", "a waiting pause holds up no command"
        half.set()
        assert put.result().status_code == 200
        assert pause.result().json()["sandbox"]["state"] == "paused"


def test_a_pause_beside_a_file_that_does_not_move_is_refused_for_a_while(fleet: SmallFleet) -> None:
    with requests.Session() as session:
        send = sender(fleet, session)
        assert send("PUT", "files", params={"path": "huge"}, data=bytes(64 * limits.MIB)).status_code == 200
        with send("GET", "files", params={"path": "huge"}, stream=True) as download:
            assert download.raw.read(1000)
            answer = fleet.call("POST", "/v1/sandboxes/box/pause")
            assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "busy", True)
            assert int(answer.headers["Retry-After"]) > 0
            assert echo(sender(fleet, requests.Session()), "on") == ""
        wait_until(lambda: fleet.call("POST", "/v1/sandboxes/box/pause").status_code == 200)
