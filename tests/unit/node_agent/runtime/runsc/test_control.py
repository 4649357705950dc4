"""The control socket, against a sentry that a test plays."""

import array
import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node_agent.runtime.runsc.control import Control, ControlError, ControlLostError, GuestProcess, Launch
from node_agent.runtime.runsc.process import family

LAUNCH = Launch(("a",), ("A=1",), "/", 1, 2, (3,), 4, 5)
Answer = Callable[[dict[str, Any]], bytes | None]


class Sentry:
    """Answers each request by a function; ``None`` closes the connection instead."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.requests: list[dict[str, Any]] = []
        self.descriptors = 0
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed at the end of a test
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    while self._one(connection):
                        pass

    def _one(self, connection: socket.socket) -> bool:
        received = b""
        while True:
            data, rights, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(64))
            for _, _, packed in rights:
                handed = array.array("i", packed)
                self.descriptors += len(handed)
                for descriptor in handed:
                    os.close(descriptor)
            received += data
            if not data:
                return False
            try:
                request = json.loads(received)
            except ValueError:
                continue
            self.requests.append(request)
            answer = self._answer(request)
            if answer is None:
                return False
            connection.sendall(answer)
            received = b""

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def sentry(tmp_path: Path) -> Iterator[Callable[[Answer], tuple[Control, Sentry]]]:
    made: list[Sentry] = []

    def make(answer: Answer) -> tuple[Control, Sentry]:
        made.append(Sentry(tmp_path / "s.sock", answer))
        return Control(tmp_path / "s.sock", "box"), made[-1]

    yield make
    for one in made:
        one.close()


def success(result: Any = None) -> bytes:
    return json.dumps({"success": True, "err": "", "result": result}).encode()


def test_exec_hands_descriptors_over_and_awaits_the_end_on_one_connection(sentry: Any) -> None:
    control, played = sentry(lambda request: success(9 if "Execute" in request["method"] else 256))

    pid, pending = control.execute(LAUNCH, (0, 1, 2))
    with contextlib.closing(pending):
        select.select([pending], [], [], 10)
        assert (pid, pending.take()) == (9, 256)

    assert played.descriptors == 3
    start, wait = played.requests
    assert start["arg"]["argv"] == ["a"]
    assert (start["arg"]["KUID"], start["arg"]["KGID"], start["arg"]["ExtraKGIDs"]) == (1, 2, [3])
    assert start["arg"]["Capabilities"]["EffectiveCaps"] == 4
    assert start["arg"]["Capabilities"]["BoundingCaps"] == 5
    assert wait["arg"] == {"PID": 9, "CID": "box"}


def test_exec_of_two_mebibytes_is_sent_whole(sentry: Any) -> None:
    control, played = sentry(lambda request: success(9))
    argv = tuple("x" * 100_000 for _ in range(20))

    _, pending = control.execute(Launch(argv, (), "/", 0, 0, (), 0, 0), (0, 1, 2))
    pending.close()

    assert played.requests[0]["arg"]["argv"] == list(argv)


def test_error_carries_the_sentrys_words(sentry: Any) -> None:
    control, _ = sentry(lambda request: b'{"success":false,"err":"no such file"}')

    with pytest.raises(ControlError, match="no such file"):
        control.execute(LAUNCH, (0, 1, 2))


def test_sentry_that_goes_away_is_lost(sentry: Any) -> None:
    control, _ = sentry(lambda request: None)

    with pytest.raises(ControlLostError):
        control.pause()


def test_sentry_that_is_not_there_is_lost(tmp_path: Path) -> None:
    with pytest.raises(ControlLostError):
        Control(tmp_path / "nobody.sock", "box").resume()


def test_sentry_that_does_not_answer_is_lost(sentry: Any) -> None:
    silence = threading.Event()

    def never(request: dict[str, Any]) -> None:
        silence.wait(30)

    control, _ = sentry(never)
    with pytest.raises(ControlLostError, match="timed out"):
        control.call("containerManager.Pause", timeout=0.05)
    silence.set()


def test_family_is_the_group_and_all_below_it() -> None:
    processes = [
        GuestProcess(1, 0, 1),
        GuestProcess(10, 0, 10),  # the exec
        GuestProcess(11, 10, 10),
        GuestProcess(12, 10, 12),  # a session of its own
        GuestProcess(13, 12, 12),
        GuestProcess(14, 1, 10),  # an orphan of the group
        GuestProcess(15, 14, 15),
        GuestProcess(20, 0, 20),  # another exec
        GuestProcess(21, 1, 20),
    ]

    assert family(10, processes) == {10, 11, 12, 13, 14, 15}


def test_family_of_a_leader_that_is_gone() -> None:
    assert family(10, [GuestProcess(11, 1, 10), GuestProcess(12, 11, 12), GuestProcess(13, 1, 13)]) == {11, 12}
