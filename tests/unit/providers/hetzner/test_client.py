"""hcloud's resource clients over our own exchanges: one call is one call, bounded, and on the provider's clock."""

import http.server
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import ClassVar

import hcloud
import pytest
from hcloud.images import Image
from hcloud.server_types import ServerType

from providers.base import Applied, Deleted, ErrorKind, ProviderError, Ref
from providers.hetzner.client import HetznerClient
from providers.hetzner.settings import parse
from providers.rate_limit import Priority
from tests.fakes.hetzner.emulator import EPOCH
from tests.unit.providers.hetzner.lab import Lab, order

NEVER_SLEEPS = SimpleNamespace(sleep=lambda _: pytest.fail("it sleeps"))


def ask(client: HetznerClient, method: str) -> None:
    with client.talk(Priority.CREATE) as hetzner:
        hetzner.request(method, "/servers")


def calls(lab: Lab) -> int:
    return int(lab.cloud.audit()["calls"])


def test_hcloud_by_itself_sends_a_create_again_and_sleeps(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why its transport is not used: the caller waits, and hears that the name of its own server is taken."""
    sleeps: list[float] = []
    monkeypatch.setattr("hcloud._client.time", SimpleNamespace(sleep=sleeps.append))
    lab.cloud.fault("hang", "POST /servers", seconds=1.0)
    client = hcloud.Client(lab.cloud.token, api_endpoint=lab.cloud.api, timeout=0.2)
    with pytest.raises(hcloud.APIException) as caught:
        client.servers.create(name="op1", server_type=ServerType(name="cx33"), image=Image(name="debian-12"))
    assert caught.value.code == "uniqueness_error"
    assert len(sleeps) == 1
    assert calls(lab) == 2


@pytest.mark.parametrize("do", ["hang", "lost", "error", "html"])
def test_a_create_is_sent_once(lab: Lab, monkeypatch: pytest.MonkeyPatch, do: str) -> None:
    monkeypatch.setattr("hcloud._client.time", NEVER_SLEEPS)
    lab.cloud.fault(do, "POST /servers", seconds=1.0, status=504, code="timeout", apply=True)
    with pytest.raises(ProviderError) as caught:
        lab.provider(read_seconds=0.3).create(order())
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.MAYBE)
    assert calls(lab) == 1


@pytest.mark.parametrize("code", ["conflict", "rate_limit_exceeded", "bad_gateway", "timeout"])
def test_no_code_makes_it_try_again(lab: Lab, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr("hcloud._client.time", NEVER_SLEEPS)
    lab.cloud.fault("error", "GET /servers", status=400, code=code, times=None)
    with pytest.raises(ProviderError):
        lab.provider().list()
    assert calls(lab) == 1


def test_a_silent_api_is_left(lab: Lab) -> None:
    lab.cloud.fault("slow", "GET /servers", seconds=1.0)
    with pytest.raises(ProviderError) as caught:
        lab.provider(read_seconds=0.2).list()
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.NO)


def test_where_nobody_listens_nothing_was_applied() -> None:
    with pytest.raises(ProviderError) as caught:
        ask(HetznerClient(parse({"endpoint": "http://127.0.0.1:9/v1", "ssh_keys": ["fleet"]}), "t"), "POST")
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.NO)


def test_times_are_the_providers(lab: Lab) -> None:
    lab.advance(90)
    assert lab.provider().list().taken_at == datetime.fromtimestamp(EPOCH + 90, UTC)


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers every call with one body and one set of headers."""

    status: ClassVar[int]
    body: ClassVar[bytes]
    extra: ClassVar[dict[str, str]]
    seen: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response_only(self.status)
        for name, value in {"Content-Length": str(len(self.body)), **self.extra}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815 - the base class names it

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[tuple[type[Odd], HetznerClient]]:
    handler = type("One", (Odd,), {"status": 200, "body": b"{}", "extra": {}, "seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    yield handler, HetznerClient(parse({"endpoint": endpoint, "ssh_keys": ["fleet"]}), "t")
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.mark.parametrize(
    ("status", "body", "applied"),
    [
        (500, {"error": "broken"}, Applied.MAYBE),
        (400, {"error": {"text": "no code"}}, Applied.MAYBE),
        (400, {"error": None}, Applied.MAYBE),
        (401, {"error": []}, Applied.NO),
        (200, [1, 2], Applied.MAYBE),
    ],
)
def test_bodies_of_another_shape(
    odd: tuple[type[Odd], HetznerClient], status: int, body: object, applied: Applied
) -> None:
    handler, client = odd
    handler.status, handler.body = status, json.dumps(body).encode()
    handler.extra = {"Date": "Tue, 01 Jan 2030 00:00:00 GMT"}
    with pytest.raises(ProviderError) as caught:
        ask(client, "POST")
    assert caught.value.applied is applied


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_an_answer_without_a_time_is_not_understood(odd: tuple[type[Odd], HetznerClient], date: str | None) -> None:
    handler, client = odd
    handler.extra = {"Date": date} if date is not None else {}
    with pytest.raises(ProviderError, match="Date") as caught:
        ask(client, "GET")
    assert caught.value.kind is ErrorKind.BUG


# -- rate limit -------------------------------------------------------------------------------------------------------


def test_deletes_go_on_in_the_reserve(lab: Lab) -> None:
    provider = lab.provider()
    made = provider.create(order())
    lab.cloud.ask("budget", left=10)
    provider.list()
    before = lab.cloud.audit()["calls"]
    for call in (provider.offers, provider.list, lambda: provider.create(order(2)), lambda: provider.get(Ref(id="1"))):
        with pytest.raises(ProviderError) as caught:
            call()
        assert (caught.value.kind, caught.value.applied) == (ErrorKind.RATE_LIMIT, Applied.NO)
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 0
    assert lab.cloud.audit()["calls"] == before, "it asked all the same"
    assert provider.delete(Ref(id=made.id)) is Deleted.ACCEPTED


def test_calls_come_back_with_time(lab: Lab) -> None:
    provider = lab.provider()
    lab.cloud.ask("budget", left=0)
    with pytest.raises(ProviderError) as caught:
        provider.create(order())
    assert caught.value.retry_after == pytest.approx(601)
    lab.advance(602)
    provider.create(order())


def test_looking_for_leftovers_waits_while_calls_are_scarce(lab: Lab) -> None:
    lab.cloud.ask("budget", left=800)
    provider = lab.provider()
    provider.list()
    before = lab.cloud.audit()["calls"]
    provider.list()
    assert lab.cloud.audit()["calls"] == before + 1
