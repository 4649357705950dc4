"""hcloud's resource clients over our own exchanges: one call is one call, bounded, and on the provider's clock."""

import http.server
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, ClassVar

import hcloud
import pytest
from hcloud.images import Image
from hcloud.server_types import ServerType

from providers.base import DEPLOYMENT_LABEL, OPERATION_LABEL, Applied, Deleted, ErrorKind, ProviderError, Ref
from providers.hetzner.client import HetznerClient
from providers.hetzner.settings import parse
from providers.rate_limit import Priority
from tests.fakes.hetzner.emulator import EPOCH
from tests.unit.providers.hetzner.lab import DEPLOYMENT, Lab, order

NEVER_SLEEPS = SimpleNamespace(sleep=lambda _: pytest.fail("it sleeps"))


def ask(client: HetznerClient, method: str) -> None:
    with client.talk(Priority.CREATE) as hetzner:
        hetzner.request(method, "/servers")


def calls(lab: Lab) -> int:
    return int(lab.cloud.audit()["calls"])


def test_hclouds_own_transport_repeats_a_create_and_sleeps(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_no_error_code_is_retried(lab: Lab, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr("hcloud._client.time", NEVER_SLEEPS)
    lab.cloud.fault("error", "GET /servers", status=400, code=code, times=None)
    with pytest.raises(ProviderError):
        lab.provider().list()
    assert calls(lab) == 1


def test_a_silent_api_times_out(lab: Lab) -> None:
    lab.cloud.fault("slow", "GET /servers", seconds=1.0)
    with pytest.raises(ProviderError) as caught:
        lab.provider(read_seconds=0.2).list()
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.NO)


def test_where_nobody_listens_nothing_was_applied() -> None:
    with pytest.raises(ProviderError) as caught:
        ask(HetznerClient(parse({"endpoint": "http://127.0.0.1:9/v1", "ssh_keys": ["fleet"]}), "t"), "POST")
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.NO)


def test_times_are_by_the_providers_clock(lab: Lab) -> None:
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
def test_error_bodies_of_another_shape(
    odd: tuple[type[Odd], HetznerClient], status: int, body: object, applied: Applied
) -> None:
    handler, client = odd
    handler.status, handler.body = status, json.dumps(body).encode()
    handler.extra = {"Date": "Tue, 01 Jan 2030 00:00:00 GMT"}
    with pytest.raises(ProviderError) as caught:
        ask(client, "POST")
    assert caught.value.applied is applied


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_an_answer_without_a_date_is_a_bug(odd: tuple[type[Odd], HetznerClient], date: str | None) -> None:
    handler, client = odd
    handler.extra = {"Date": date} if date is not None else {}
    with pytest.raises(ProviderError, match="Date") as caught:
        ask(client, "GET")
    assert caught.value.kind is ErrorKind.BUG


# -- whole listings, whatever happens between two pages ---------------------------------------------------------------

LABELS = {DEPLOYMENT_LABEL: DEPLOYMENT, OPERATION_LABEL: "x"}
MANY = 120


@pytest.fixture
def full(lab: Lab) -> Lab:
    """Return a project with three pages of servers."""
    provider = lab.provider()
    for number in range(MANY):
        provider.create(order(number))
    lab.advance(3600)
    return lab


def listed(lab: Lab) -> list[str]:
    return [instance.name for instance in lab.provider().list().instances]


def standing(lab: Lab) -> list[str]:
    return [server["name"] for server in lab.cloud.here()]


def pages_asked(lab: Lab, **fault: Any) -> int:
    """Pages that one listing of servers took."""
    before = lab.cloud.audit()["calls"]
    assert listed(lab) == standing(lab)
    return int(lab.cloud.audit()["calls"]) - before - 3  # the side resources


def test_all_pages_are_read_once(full: Lab) -> None:
    assert pages_asked(full) == 3


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("do", ["delete", "replace"])
def test_a_server_deleted_between_pages_hides_no_other(full: Lab, do: str, page: int) -> None:
    """The first of the next page slips into this one; a new server keeps even the total as it was."""
    full.cloud.fault(do, "GET /servers", match={"page": page})
    assert listed(full) == standing(full)
    assert len(standing(full)) == MANY - (do == "delete")


def test_a_repeated_page_is_read_again(full: Lab) -> None:
    full.cloud.fault("page_again", "GET /servers", match={"page": 2})
    assert pages_asked(full) == 6


def test_without_totals_two_readings_must_agree(full: Lab) -> None:
    full.cloud.knobs(totals=False)
    assert pages_asked(full) == 6
    full.cloud.fault("delete", "GET /servers", match={"page": 1})
    assert pages_asked(full) == 9


def test_newborns_on_a_later_page_need_a_second_reading(lab: Lab) -> None:
    for number in range(60):
        lab.provider().create(order(number))
    assert pages_asked(lab) == 4


@pytest.mark.parametrize("do", ["page_again", "replace", "delete"])
def test_a_listing_that_keeps_changing_is_transient(full: Lab, do: str) -> None:
    full.cloud.fault(do, "GET /servers", times=None, match={"page": 2} if do == "page_again" else {"page": 1})
    with pytest.raises(ProviderError, match="changed") as caught:
        full.provider().list()
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.NO)


@pytest.mark.parametrize("page", [1, 2, 3])
@pytest.mark.parametrize("fault", [{"do": "drop"}, {"do": "html", "status": 200}, {"do": "garbage"}, {"do": "error"}])
def test_a_partial_listing_is_never_returned(full: Lab, fault: dict[str, Any], page: int) -> None:
    full.cloud.fault(on="GET /servers", match={"page": page}, **fault)
    with pytest.raises(ProviderError):
        full.provider().list()


def test_side_resources_are_listed_completely(lab: Lab) -> None:
    """Side resources and catalogue are read the same way."""
    for number in range(70):
        lab.cloud.add("volumes", name=f"v{number}", labels=LABELS)
    lab.advance(10)
    lab.cloud.fault("page_again", "GET /volumes", match={"page": 2})
    assert len(lab.provider().list().leftovers) == 70


# -- rate limit -------------------------------------------------------------------------------------------------------


def test_deletes_use_the_reserve(lab: Lab) -> None:
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


def test_leftovers_are_not_listed_while_calls_are_scarce(lab: Lab) -> None:
    lab.cloud.ask("budget", left=800)
    provider = lab.provider()
    provider.list()
    before = lab.cloud.audit()["calls"]
    provider.list()
    assert lab.cloud.audit()["calls"] == before + 1
