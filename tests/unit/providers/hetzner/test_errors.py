"""Every row of the error table, as the API would answer it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.base import Applied, Deleted, ErrorKind, ProviderError, Ref, Scope
from providers.hetzner.errors import MEANINGS
from tests.unit.providers.hetzner.lab import Lab, order

K, A, S = ErrorKind, Applied, Scope
PAGE = (Path(__file__).resolve().parents[4] / "docs/providers/hetzner.md").read_text()
LIMITS = {"limits": [{"name": "primary_ip_limit"}, {"name": "server_limit"}]}

# status, code, message; then what a create makes of it
ROWS: list[tuple[int, str, str, ErrorKind, Applied, Scope]] = [
    (401, "unauthorized", "", K.AUTH, A.NO, S.PROVIDER),
    (403, "token_readonly", "", K.AUTH, A.NO, S.PROVIDER),
    (403, "forbidden", "", K.AUTH, A.NO, S.PROVIDER),
    (403, "resource_limit_exceeded", "", K.QUOTA, A.NO, S.PROVIDER),
    (403, "maintenance", "", K.BUSY, A.NO, S.PROVIDER),
    (404, "not_found", "image not found", K.CONFIG, A.NO, S.POOL),
    (405, "method_not_allowed", "", K.BUG, A.NO, S.PROVIDER),
    (400, "json_error", "", K.BUG, A.NO, S.PROVIDER),
    (409, "conflict", "", K.BUSY, A.NO, S.INSTANCE),
    (410, "deprecated_api_endpoint", "", K.DEPRECATED, A.NO, S.PROVIDER),
    (412, "resource_unavailable", "error during placement", K.CAPACITY, A.NO, S.OFFER),
    (412, "resource_unavailable", "server location disabled", K.CAPACITY, A.NO, S.LOCATION),
    (412, "primary_ip_version_mismatch", "", K.CONFIG, A.NO, S.POOL),
    (422, "placement_error", "", K.CAPACITY, A.NO, S.OFFER),
    (422, "invalid_input", "", K.CONFIG, A.NO, S.POOL),
    (422, "invalid_input", "unsupported location for server type", K.CAPACITY, A.NO, S.OFFER),
    (422, "service_error", "placement group contains already 10 servers", K.CONFIG, A.NO, S.POOL),
    (422, "unsupported_error", "", K.CONFIG, A.NO, S.POOL),
    (422, "primary_ip_datacenter_mismatch", "", K.CONFIG, A.NO, S.POOL),
    (422, "networks_overlap", "", K.CONFIG, A.NO, S.POOL),
    (422, "invalid_server_type", "", K.CONFIG, A.NO, S.POOL),
    (422, "private_net_only_server", "", K.CONFIG, A.NO, S.POOL),
    (422, "primary_ip_assigned", "", K.BUSY, A.NO, S.POOL),
    (422, "no_subnet_available", "", K.BUSY, A.NO, S.POOL),
    (422, "ip_not_available", "", K.BUSY, A.NO, S.POOL),
    (423, "locked", "", K.BUSY, A.NO, S.INSTANCE),
    (423, "protected", "", K.BUSY, A.NO, S.INSTANCE),
    (429, "rate_limit_exceeded", "", K.RATE_LIMIT, A.NO, S.PROVIDER),
    (500, "server_error", "", K.TRANSIENT, A.MAYBE, S.PROVIDER),
    (502, "bad_gateway", "", K.TRANSIENT, A.MAYBE, S.PROVIDER),
    (503, "unavailable", "", K.TRANSIENT, A.MAYBE, S.PROVIDER),
    (504, "timeout", "", K.TRANSIENT, A.MAYBE, S.PROVIDER),
    # not in the table: what is known is the status
    (503, "something_new", "", K.TRANSIENT, A.MAYBE, S.PROVIDER),
    (409, "something_new", "", K.BUSY, A.NO, S.INSTANCE),
    (418, "something_new", "", K.BUG, A.MAYBE, S.PROVIDER),
]


@pytest.fixture(autouse=True)
def calm(shared: Lab) -> Iterator[None]:
    yield
    shared.cloud.calm()
    shared.cloud.ask("budget", left=3600)


@pytest.mark.parametrize(("status", "code", "message", "kind", "applied", "scope"), ROWS)
def test_a_create_that_is_refused(
    shared: Lab, status: int, code: str, message: str, kind: ErrorKind, applied: Applied, scope: Scope
) -> None:
    shared.cloud.fault("error", "POST /servers", status=status, code=code, message=message or code)
    with pytest.raises(ProviderError) as caught:
        shared.provider().create(order())
    assert (caught.value.kind, caught.value.applied, caught.value.scope) == (kind, applied, scope)
    assert caught.value.code == code
    assert code in str(caught.value)
    assert "correlation id" in str(caught.value)
    assert shared.cloud.here() == []


def test_every_code_of_the_table_is_tested() -> None:
    assert set(MEANINGS) - {row[1] for row in ROWS} == {"uniqueness_error"}  # adopted or refused: see test_create


@pytest.mark.parametrize(("status", "code", "message", "kind", "applied", "scope"), ROWS)
def test_a_failed_read_has_no_effect(
    shared: Lab, status: int, code: str, message: str, kind: ErrorKind, applied: Applied, scope: Scope
) -> None:
    shared.cloud.fault("error", "GET /servers", status=status, code=code, message=message or code)
    with pytest.raises(ProviderError) as caught:
        shared.provider().list()
    assert caught.value.kind is (K.NOT_FOUND if code == "not_found" else kind)
    assert caught.value.applied is A.NO


def test_limits_are_named(shared: Lab) -> None:
    fields: dict[str, Any] = {"status": 403, "code": "resource_limit_exceeded", "message": "no", "details": LIMITS}
    shared.cloud.fault("error", "POST /servers", **fields)
    with pytest.raises(ProviderError, match="primary_ip_limit, server_limit") as caught:
        shared.provider().create(order())
    assert caught.value.details["limits"] == "primary_ip_limit, server_limit"


def test_a_protected_server_is_marked_in_the_details(lab: Lab) -> None:
    made = lab.provider().create(order())
    lab.cloud.ask("server", name=made.name, protected=True)
    with pytest.raises(ProviderError) as caught:
        lab.provider().delete(Ref(id=made.id))
    assert (caught.value.kind, caught.value.details["protected"]) == (K.BUSY, "true")


def test_a_locked_server_is_deleted_later(lab: Lab) -> None:
    lab.cloud.knobs(lock_stops_deletes=True)
    made = lab.provider().create(order())
    with pytest.raises(ProviderError) as caught:
        lab.provider().delete(Ref(id=made.id))
    assert (caught.value.kind, caught.value.applied, caught.value.scope) == (K.BUSY, A.NO, S.INSTANCE)
    lab.advance(60)
    assert lab.provider().delete(Ref(id=made.id)) is Deleted.ACCEPTED


def test_an_unsupported_location_has_a_long_retry_after(shared: Lab) -> None:
    with pytest.raises(ProviderError) as caught:
        shared.provider().create(order(type="cx33", location="ash"))
    assert (caught.value.kind, caught.value.scope) == (K.CAPACITY, S.OFFER)
    assert caught.value.retry_after == 6 * 3600


@pytest.mark.parametrize(
    ("status", "kind", "applied"),
    [
        (503, K.TRANSIENT, A.MAYBE),
        (502, K.TRANSIENT, A.MAYBE),
        (200, K.BUG, A.MAYBE),
        (404, K.BUG, A.MAYBE),
        (403, K.AUTH, A.NO),
        (429, K.RATE_LIMIT, A.NO),
    ],
)
def test_an_html_page_is_an_error(shared: Lab, status: int, kind: ErrorKind, applied: Applied) -> None:
    shared.cloud.fault("html", "POST /servers", status=status)
    with pytest.raises(ProviderError) as caught:
        shared.provider().create(order())
    assert (caught.value.kind, caught.value.applied) == (kind, applied)


def test_an_html_page_is_never_an_absence(shared: Lab) -> None:
    for status in (200, 404, 503):
        for on in ("GET /servers/4711", "GET /servers"):
            shared.cloud.fault("html", on, status=status)
        with pytest.raises(ProviderError):
            shared.provider().get(Ref(id="4711"))
        with pytest.raises(ProviderError):
            shared.provider().get(Ref(name="unit-cpu-op1"))


@pytest.mark.parametrize("mode", ["expired", "ro"])
def test_a_bad_token_is_an_auth_error_without_effect(lab: Lab, mode: str) -> None:
    made = lab.provider().create(order())
    lab.cloud.knobs(token_mode=mode)
    for call in (lambda: lab.provider().create(order(2)), lambda: lab.provider().delete(Ref(id=made.id))):
        with pytest.raises(ProviderError) as caught:
            call()
        assert (caught.value.kind, caught.value.applied, caught.value.scope) == (K.AUTH, A.NO, S.PROVIDER)
    assert [server["name"] for server in lab.cloud.here()] == [made.name]


@pytest.mark.parametrize(
    ("status", "code", "kind", "applied", "scope"),
    [(row[0], row[1], *row[3:]) for row in ROWS if row[1] != "something_new"],
)
def test_the_documented_errors_are_the_tested_ones(
    status: int, code: str, kind: ErrorKind, applied: Applied, scope: Scope
) -> None:
    row = rf"^\| {status} \| `{code}`[^|]* \| {kind} \| {applied} \| {scope} \|$"
    assert re.search(row, PAGE, flags=re.MULTILINE)
