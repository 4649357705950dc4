"""One exchange: authenticated, bounded, never repeated, never redirected."""

import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest

from providers.http import Answer, AnswerTooLargeError, Connection, NoAnswerError, Timeouts
from tests.fakes.web import Reply, Request, WebServer

Serve = Callable[[Callable[[Request], Reply]], Connection]
PATIENT = Timeouts(connect=5.0, silence=20.0, whole=20.0)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve functions for the length of the test, and connect to them."""
    servers: list[WebServer] = []

    def start(answer: Callable[[Request], Reply]) -> Connection:
        servers.append(WebServer(answer))
        return Connection(servers[-1].url, PATIENT, {"Project": "p"})

    yield start
    for server in servers:
        server.close()


def test_a_request_carries_the_token_the_query_and_the_body(serve: Serve) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return Reply.of({"ok": True}, 201)

    got = serve(answer).exchange("POST", "/things", token="t0", query={"a": ["1", "2"]}, body={"x": 1})
    assert (got.status, got.is_success, got.body) == (201, True, b'{"ok": true}')
    (request,) = seen
    assert (request.method, request.path, request.json()) == ("POST", "/things", {"x": 1})
    assert {name: request.headers[name] for name in ("authorization", "project", "accept", "user-agent")} == {
        "authorization": "Bearer t0",
        "project": "p",
        "accept": "application/json",
        "user-agent": "sandbox-fleet",
    }


def test_a_netrc_does_not_replace_the_token(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    connection = serve(lambda request: Reply.of(request.headers["authorization"]))
    assert connection.exchange("GET", "/", token="t0").body == b'"Bearer t0"'


def test_an_error_is_an_answer_and_not_repeated(serve: Serve) -> None:
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        seen.append(request.path)
        return Reply(503, b"later")

    got = serve(answer).exchange("GET", "/busy", token="t")
    assert (got.status, got.is_success, got.body, seen) == (503, False, b"later", ["/busy"])


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        seen.append(request.path)
        return Reply(302, headers={"Location": "/elsewhere"})

    assert serve(answer).exchange("POST", "/here", token="t", body={}).status == 302
    assert seen == ["/here"]


def test_an_answer_has_a_bound(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("providers.http.MAX_BODY", 1000)
    connection = serve(lambda _: Reply(200, b" " * 70_000))
    with pytest.raises(AnswerTooLargeError) as caught:
        connection.exchange("GET", "/", token="t")
    assert caught.value.sent


@pytest.mark.parametrize("cut", [0, 120])
def test_a_truncated_answer_is_no_answer(serve: Serve, cut: int) -> None:
    connection = serve(lambda _: Reply(200, b" " * 200, cut=cut))
    with pytest.raises(NoAnswerError) as caught:
        connection.exchange("POST", "/", token="t", body={})
    assert caught.value.sent


@pytest.mark.parametrize("timeouts", [Timeouts(5.0, 0.2, 20.0), Timeouts(5.0, 20.0, 0.2)], ids=["silence", "whole"])
def test_an_answer_that_takes_too_long_is_no_answer(timeouts: Timeouts) -> None:
    """One that never comes, or one that never ends."""
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            if timeouts.silence > timeouts.whole:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
            while not ended.wait(0.02):
                if timeouts.silence > timeouts.whole:
                    connection.sendall(b" " * 70_000)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: _until_broken(drip, listener), daemon=True)
        thread.start()
        connection = Connection(f"http://127.0.0.1:{listener.getsockname()[1]}", timeouts)
        with pytest.raises(NoAnswerError) as caught:
            connection.exchange("POST", "/", token="t", body={})
        ended.set()
        thread.join(10)
    assert caught.value.sent


def _until_broken(work: Callable[[socket.socket], None], listener: socket.socket) -> None:
    try:
        work(listener)
    except OSError:
        return


def test_where_nobody_listens_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoAnswerError) as caught:
        Connection(f"http://127.0.0.1:{port}", PATIENT).exchange("POST", "/", token="t", body={})
    assert not caught.value.sent


NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = format_datetime(datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Retry-After": "120"}, 120.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": LATER, "Date": format_datetime(NOW, usegmt=True)}, 30.0),
        ({"Retry-After": format_datetime(NOW, usegmt=True), "Date": LATER}, 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], expected: float | None) -> None:
    assert Answer(429, headers, b"").retry_after == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Tue, 01 Jan 2030 00:00:00 GMT", NOW), ("Tue, 01 Jan 2030 01:00:00 +0100", NOW), ("yesterday", None), ("", None)],
)
def test_an_answer_is_dated_by_the_servers_clock(text: str, expected: datetime | None) -> None:
    assert Answer(200, {"Date": text}, b"").date == expected
