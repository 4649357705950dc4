"""One exec's stream as a stranger may fill it: the marks in it are no more than claims."""

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.runtime.docker_engine import process
from node_agent.runtime.docker_engine.client import UpgradedStream
from node_agent.runtime.docker_engine.process import DockerExec, LostExec, Remains
from tests.unit.node_agent.runtime.docker_engine.fake_daemon import UPGRADED, Serve, daemon, frame

PREFIX = "0123456789abcdef"
OUT, ERR = 1, 2


class Nobody:
    """Neither reaches processes nor watches any."""

    def signal(self, group: int, number: int) -> None: ...

    def kill_tree(self, leader: int) -> None: ...

    def lost(self) -> LostExec:
        return LostExec(Remains.SANDBOX_RUNS)

    def stop(self) -> None: ...


def mark(text: str) -> bytes:
    return f"\x1e{PREFIX}{text};".encode()


def opened(path: Path, serve: Serve) -> DockerExec:
    """Open an exec whose stream ``serve`` fills."""
    with daemon(path, serve) as url:
        return DockerExec(UpgradedStream(url, "/exec/1/start", {}), PREFIX, "true", "/", Nobody(), Nobody())


@pytest.mark.parametrize("pid", ["", "-1", "x", "9" * 40])
def test_a_forged_start_is_refused(tmp_path: Path, pid: str) -> None:
    with pytest.raises(RuntimeFailure) as refused:
        opened(tmp_path / "s", lambda to: to.sendall(UPGRADED + frame(OUT, mark(f"P{pid}"))))

    assert refused.value.code is ErrorCode.EXEC_LOST


@pytest.mark.parametrize("code", ["", "-1", "256", "9" * 40])
def test_a_forged_end_leaves_the_end_unknown(tmp_path: Path, code: str) -> None:
    ended = mark(f"E{code}")
    content = UPGRADED + frame(OUT, mark("P7")) + frame(OUT, b"out" + ended) + frame(ERR, ended)
    with contextlib.closing(opened(tmp_path / "s", lambda to: to.sendall(content))) as execed:
        while execed.read() is not None:
            pass
        with pytest.raises(RuntimeFailure) as lost:
            execed.wait()

    assert lost.value.code is ErrorCode.EXEC_LOST


def test_a_flood_before_the_start_is_not_kept(tmp_path: Path) -> None:
    def flood(to: socket.socket) -> None:
        with contextlib.suppress(OSError):  # hung up on
            to.sendall(UPGRADED)
            for _ in range(1000):
                to.sendall(frame(ERR, bytes(65536)))

    with pytest.raises(RuntimeFailure) as refused:
        opened(tmp_path / "s", flood)

    assert refused.value.code is ErrorCode.EXEC_LOST


def test_a_start_that_never_comes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_WAIT", 0.05)
    over = threading.Event()

    def silent(to: socket.socket) -> None:
        to.sendall(UPGRADED)
        over.wait(10)

    with daemon(tmp_path / "s", silent) as url:
        stream = UpgradedStream(url, "/exec/1/start", {})
        with pytest.raises(RuntimeFailure) as refused:
            DockerExec(stream, PREFIX, "true", "/", Nobody(), Nobody())
        over.set()

    assert refused.value.code is ErrorCode.EXEC_LOST
