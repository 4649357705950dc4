"""Upgraded connections: nothing that the engine sends is lost, and both directions end when they should."""

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.runtime.base import Stream
from node_agent.runtime.docker_engine.client import StreamRefusedError, UpgradedStream
from tests.unit.node_agent.runtime.docker_engine.fake_daemon import UPGRADED, daemon, frame


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sfu-", dir="/tmp") as directory:
        yield Path(directory) / "s"


def _all(stream: UpgradedStream) -> list[tuple[Stream, bytes]]:
    pieces = []
    while (piece := stream.read()) is not None:
        pieces.append(piece)
    return pieces


@pytest.mark.parametrize("attempt", range(20))
def test_frames_that_come_with_the_headers_are_not_lost(path: Path, attempt: int) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(UPGRADED + frame(1, b"first") + frame(2, b"second"))

    with daemon(path, serve) as url, contextlib.closing(UpgradedStream(url, "/exec/1/start", {})) as stream:
        assert _all(stream) == [(Stream.STDOUT, b"first"), (Stream.STDERR, b"second")]


def test_frames_cut_anywhere_arrive_whole(path: Path) -> None:
    answer = UPGRADED + frame(1, b"one") + frame(1, b"") + frame(2, b"two")

    def serve(connection: socket.socket) -> None:
        for index in range(len(answer)):
            connection.sendall(answer[index : index + 1])

    with daemon(path, serve) as url, contextlib.closing(UpgradedStream(url, "/exec/1/start", {})) as stream:
        assert _all(stream) == [(Stream.STDOUT, b"one"), (Stream.STDERR, b"two")]


def test_a_large_frame_comes_in_bounded_pieces(path: Path) -> None:
    data = bytes(range(256)) * 1024

    with (
        daemon(path, lambda connection: connection.sendall(UPGRADED + frame(1, data))) as url,
        contextlib.closing(UpgradedStream(url, "/exec/1/start", {})) as stream,
    ):
        pieces = [piece for _, piece in _all(stream)]

    assert b"".join(pieces) == data
    assert max(len(piece) for piece in pieces) <= limits.EXEC_CHUNK


def test_a_frame_cut_by_the_end_gives_what_came(path: Path) -> None:
    with (
        daemon(
            path, lambda connection: connection.sendall(UPGRADED + frame(1, b"whole") + frame(1, b"cut off")[:11])
        ) as url,
        contextlib.closing(UpgradedStream(url, "/exec/1/start", {})) as stream,
    ):
        assert _all(stream) == [(Stream.STDOUT, b"whole"), (Stream.STDOUT, b"cut")]


def test_a_refusal_carries_the_engines_sentence(path: Path) -> None:
    body = b'{"message":"Container abc is not running"}'
    answer = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    with (
        daemon(path, lambda connection: connection.sendall(answer)) as url,
        pytest.raises(StreamRefusedError) as refused,
    ):
        UpgradedStream(url, "/exec/1/start", {})

    assert (refused.value.status, refused.value.message) == (409, "Container abc is not running")


def test_an_engine_that_hangs_up_is_no_answer(path: Path) -> None:
    with daemon(path, lambda connection: None) as url, pytest.raises(RuntimeFailure) as failure:
        UpgradedStream(url, "/exec/1/start", {})

    assert failure.value.code is ErrorCode.BUSY


def test_an_engine_that_is_not_there(path: Path) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        UpgradedStream(f"unix://{path}", "/exec/1/start", {})

    assert failure.value.code is ErrorCode.BUSY
    assert str(path) in failure.value.message


def test_half_close_ends_the_input_and_leaves_the_output_open(path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(UPGRADED)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        connection.sendall(frame(1, received))

    with daemon(path, serve) as url, contextlib.closing(UpgradedStream(url, "/exec/1/start", {})) as stream:
        assert stream.write(b"input")
        stream.close_write()
        stream.close_write()
        assert _all(stream) == [(Stream.STDOUT, b"input")]


def test_hanging_up_lets_a_blocked_reader_and_writer_go(path: Path) -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.sendall(UPGRADED)
        over.wait(10)

    with daemon(path, serve) as url, contextlib.closing(UpgradedStream(url, "/exec/1/start", {})) as stream:
        read: list[object] = []
        written: list[bool] = []
        threads = [
            threading.Thread(target=lambda: read.append(stream.read())),
            threading.Thread(target=lambda: written.append(stream.write(b"x" * 10_000_000))),
        ]
        for thread in threads:
            thread.start()
        stream.hang_up()
        for thread in threads:
            thread.join(10)
        over.set()

    assert (read, written) == ([None], [False])
