"""The service's Docker engine: its ping, its end by pid file, and what it leaves mounted."""

import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxes.local import dockerd
from sandboxes.local.mounts import is_mounted


@contextmanager
def listener(path: Path, answer: bytes) -> Iterator[None]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(answer)

    with socketserver.UnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_engine_answers_with_200(short: Path) -> None:
    with listener(short / "s", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"):
        assert dockerd.answers(short / "s")


def test_other_answers_are_no_engine(short: Path) -> None:
    assert not dockerd.answers(short / "none")
    with listener(short / "s", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"):
        assert not dockerd.answers(short / "s")
    with listener(short / "t", b"hello\n"):
        assert not dockerd.answers(short / "t")


def test_engine_is_ended_by_its_pid_file(short: Path) -> None:
    script = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, str(short)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # only now /proc surely shows its words
        (short / "pid").write_text(str(process.pid))
        dockerd.end(short / "pid", 10)
        assert process.wait(10) == -15


def test_process_that_reused_the_pid_is_left_alone(short: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (short / "pid").write_text(str(stranger.pid))
        dockerd.end(short / "pid", 10)
        assert stranger.poll() is None
        stranger.kill()


def test_end_without_pid_file_or_process_does_nothing(short: Path) -> None:
    dockerd.end(short / "pid", 10)
    (short / "pid").write_text("4194304")
    dockerd.end(short / "pid", 10)
    (short / "pid").write_text("no number")
    dockerd.end(short / "pid", 10)


@pytest.mark.engine
@pytest.mark.parametrize("name", ["data", "a\\b c\td"])
def test_release_unmounts_what_a_killed_engine_left(tmp_path: Path, name: str) -> None:
    data = tmp_path / name
    data.mkdir()
    for _ in range(2):
        subprocess.run(["mount", "--bind", data, data], check=True, timeout=10)
    assert is_mounted(data)
    try:
        dockerd.release(data)
        assert not is_mounted(data)
        dockerd.release(data)
    finally:
        while is_mounted(data):
            subprocess.run(["umount", data], check=True, timeout=10)
