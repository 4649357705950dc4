"""One exchange: credentials, deadlines, and answers that are none."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from providers.base import Applied, ErrorKind, ProviderError
from providers.ucloud.client import TOKEN_SECONDS, Credential, UCloudClient
from tests.fakes.ucloud.auth import API_TOKEN, PROJECT, REFRESH_TOKEN
from tests.fakes.ucloud.control import Remote
from tests.fakes.ucloud.lab import CPU, Lab, order
from tests.fakes.web import Reply, Request, WebServer

Serve = Callable[[Callable[[Request], Reply]], str]


def client(url: str, *, refresh: bool = False, seconds: float = 20.0, **given: Any) -> UCloudClient:
    credential = Credential(REFRESH_TOKEN if refresh else API_TOKEN, is_refresh_token=refresh)
    return UCloudClient(
        url, credential, project=PROJECT, seconds=seconds, **{"page_size": 4, "max_pages": 100, **given}
    )


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve functions for the length of the test."""
    servers: list[WebServer] = []

    def start(answer: Callable[[Request], Reply]) -> str:
        servers.append(WebServer(answer))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


def refusal(call: Callable[[], object]) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        call()
    return caught.value


# -- credentials ------------------------------------------------------------------------------------------------------


def test_one_access_token_serves_many_calls(account: Lab, remote: Remote) -> None:
    asked = client(account.url, refresh=True)
    for _ in range(3):
        asked.products()
    assert remote.truth()["refreshes"] == 1


def test_a_token_is_renewed_before_its_ten_minutes_are_over(account: Lab, remote: Remote) -> None:
    now = [0.0]
    asked = client(account.url, refresh=True, clock=lambda: now[0])
    asked.products()
    now[0] = TOKEN_SECONDS - 1
    asked.products()
    assert remote.truth()["refreshes"] == 1
    now[0] = TOKEN_SECONDS
    asked.products()
    assert remote.truth()["refreshes"] == 2


def test_an_api_token_is_never_renewed(account: Lab, remote: Remote) -> None:
    remote.ask("credentials", do="revoke")
    assert refusal(client(account.url).products).kind is ErrorKind.AUTH
    assert remote.truth()["refreshes"] == 0
    assert remote.calls("products") == 1


def test_a_token_that_is_refused_again_at_once_is_not_tried_for_ever(account: Lab, remote: Remote) -> None:
    asked = client(account.url, refresh=True)
    remote.fault("expired", "products", times=None)
    assert refusal(asked.products).kind is ErrorKind.AUTH
    assert remote.calls("products") == 2


def test_an_unreachable_sign_in_is_not_a_bad_credential(account: Lab, remote: Remote) -> None:
    remote.fault("gateway", "refresh", status=503)
    error = refusal(lambda: client(account.url, refresh=True).submit({}))
    assert (error.kind, error.applied) == (ErrorKind.TRANSIENT, Applied.NO)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"responses": []}', b"{}", b'{"responses": [{}]}', b'{"responses": [{"id": ""}]}'],
)
def test_a_submission_that_succeeds_without_an_id_is_uncertain(serve: Serve, body: bytes) -> None:
    error = refusal(lambda: client(serve(lambda _: Reply(200, body))).submit({}))
    assert (error.kind, error.applied) == (ErrorKind.BUG, Applied.MAYBE)


def test_two_ids_for_one_job_are_uncertain(serve: Serve) -> None:
    url = serve(lambda _: Reply.of({"responses": [{"id": "1"}, {"id": "2"}]}))
    assert refusal(lambda: client(url).submit({})).applied is Applied.MAYBE


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    url = serve(lambda _: Reply(302, headers={"Location": "/elsewhere"}))
    error = refusal(lambda: client(url).submit({}))
    assert (error.kind, error.applied) == (ErrorKind.BUG, Applied.MAYBE)


def test_an_answer_has_a_bound(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("providers.http.MAX_BODY", 1000)
    url = serve(lambda _: Reply(200, b" " * 70_000))
    assert refusal(client(url).products).kind is ErrorKind.BUG


def test_an_answer_that_stops_half_way_is_uncertain(serve: Serve) -> None:
    url = serve(lambda _: Reply(200, b'{"responses": [{"id": "1"}]}' + b" " * 100, cut=120))
    error = refusal(lambda: client(url).submit({}))
    assert (error.kind, error.applied) == (ErrorKind.TRANSIENT, Applied.MAYBE)


def test_an_answer_that_never_comes_is_given_up(serve: Serve) -> None:
    gate = threading.Event()

    def hang(_: Request) -> Reply:
        gate.wait(20)
        return Reply(cut=0)

    url = serve(hang)
    try:
        error = refusal(lambda: client(url, seconds=0.2).submit({}))
    finally:
        gate.set()
    assert (error.kind, error.applied) == (ErrorKind.TRANSIENT, Applied.MAYBE)


def test_where_nobody_listens_nothing_was_applied() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = refusal(lambda: client(f"http://127.0.0.1:{port}").submit({}))
    assert (error.kind, error.applied) == (ErrorKind.TRANSIENT, Applied.NO)


def test_the_servers_clock_dates_the_answer(account: Lab, remote: Remote) -> None:
    remote.ask("clock_skew", seconds=-3600)
    provider = account.provider()
    made = provider.create(order())
    inventory = provider.list()
    assert abs((inventory.taken_at - made.created_at).total_seconds()) < 2
    assert abs((inventory.instances[0].created_at - made.created_at).total_seconds()) < 2


def test_an_answer_without_a_date_is_dated_here(serve: Serve) -> None:
    listing = client(serve(lambda _: Reply.of({"items": [], "next": None}))).browse({})
    assert listing.taken_at.tzinfo is not None


# -- listings ---------------------------------------------------------------------------------------------------------


def test_every_page_is_read(account: Lab) -> None:
    found = client(account.url, page_size=7).browse({})
    assert len(found.jobs) == 121


def test_a_listing_without_end_is_given_up(account: Lab) -> None:
    error = refusal(lambda: client(account.url, page_size=7, max_pages=17).browse({}))
    assert "max_pages" in str(error)


def test_a_filter_that_the_server_ignores_is_applied_here(serve: Serve) -> None:
    job = {
        "id": "9",
        "createdAt": 1,
        "specification": {"product": {"id": CPU, "category": "c", "provider": "ucloud"}, "labels": {"a": "2"}},
        "status": {"state": "RUNNING"},
    }
    asked = client(serve(lambda _: Reply.of({"items": [job], "next": None})))
    assert asked.browse({"a": "1"}).jobs == ()
    assert asked.browse({"a": "2"}, ids=["8"]).jobs == ()
    assert len(asked.browse({"a": "2"}, ids=["9"]).jobs) == 1


def test_an_id_that_is_no_number_breaks_the_listing(serve: Serve) -> None:
    job = {
        "id": "nine",
        "createdAt": 1,
        "specification": {"product": {"id": CPU, "category": "c", "provider": "ucloud"}},
        "status": {"state": "RUNNING"},
    }
    error = refusal(lambda: client(serve(lambda _: Reply.of({"items": [job], "next": None}))).browse({}))
    assert error.kind is ErrorKind.BUG
