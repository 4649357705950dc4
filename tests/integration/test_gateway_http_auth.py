"""Nobody gets past the gate without the right token, on any route."""

from collections.abc import Iterator

import pytest
import requests

from gateway.http.app import route_table, routes_only
from gateway.http.auth import ACCESS, Access
from gateway.wire.errors import ErrorCode
from tests.fakes.edge import CLIENT, OPERATOR, SESSION, Edge, body_of, running_edge

OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json")}
ROUTES = sorted(route_table(routes_only()))
GUARDED = [route for route in ROUTES if route not in OPEN]
ALL_SECRETS = ["client-secret", "operator-secret", "node-secret", "other-node-secret"]
# Who may pass, by what the table says.
PASSES = {
    Access.CLIENT: {"client-secret", "operator-secret"},
    Access.OPERATOR: {"operator-secret"},
    Access.NODE: {"node-secret"},
    Access.JOIN: set(),
    Access.BOOT: {"operator-secret", "node-secret", "other-node-secret"},
}
WRONG = [
    (method, path, secret)
    for method, path in GUARDED
    for secret in ALL_SECRETS
    if secret not in PASSES[ACCESS[method, path]]
]
RIGHT = [(method, path, secret) for method, path in GUARDED for secret in sorted(PASSES[ACCESS[method, path]])]


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    with running_edge() as running:
        yield running


def call(edge: Edge, method: str, path: str, headers: dict[str, str]) -> requests.Response:
    filled = path.format(
        sandbox_id="box", session_id=SESSION, node_id="node-1", token_id="t1", prepare_id="p1", file_name="f"
    )
    # The body is left alone: one of the routes streams until somebody leaves.
    with requests.request(method, edge.url + filled, headers=headers, timeout=10, stream=True) as answer:
        if answer.headers.get("content-type") == "application/json":
            _ = answer.content
        return answer


def test_exactly_three_routes_are_open() -> None:
    assert {route for route, access in ACCESS.items() if access is Access.OPEN} == OPEN


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_no_token(edge: Edge, method: str, path: str) -> None:
    answer = call(edge, method, path, {})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert body_of(answer).code is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_revoked_token(edge: Edge, method: str, path: str) -> None:
    edge.services.revoked = set(ALL_SECRETS)
    try:
        for secret in ALL_SECRETS:
            answer = call(edge, method, path, {"Authorization": f"Bearer {secret}"})
            assert answer.status_code == 401
    finally:
        edge.services.revoked = set()


@pytest.mark.parametrize(("method", "path", "secret"), WRONG)
def test_wrong_scope(edge: Edge, method: str, path: str, secret: str) -> None:
    answer = call(edge, method, path, {"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 403
    assert body_of(answer).code is ErrorCode.FORBIDDEN


@pytest.mark.parametrize(("method", "path", "secret"), RIGHT)
def test_right_scope(edge: Edge, method: str, path: str, secret: str) -> None:
    assert call(edge, method, path, {"Authorization": f"Bearer {secret}"}).status_code not in {401, 403}


def test_open_routes_need_none(edge: Edge) -> None:
    assert all(call(edge, method, path, {}).status_code == 200 for method, path in OPEN)


def test_a_refused_body_is_never_looked_at(edge: Edge) -> None:
    answer = requests.post(f"{edge.url}/v1/sandboxes", data=b"{not json", timeout=10)
    assert answer.status_code == 401
    unknown = {"Authorization": "Bearer other"}
    answer = requests.post(f"{edge.url}/v1/nodes/register", data=b"{not json", headers=unknown, timeout=10)
    assert answer.status_code == 401
    known = {"Authorization": "Bearer join-secret"}
    answer = requests.post(f"{edge.url}/v1/nodes/register", data=b"{not json", headers=known, timeout=10)
    assert answer.status_code == 422


def test_join_route_takes_a_join_token_only(edge: Edge) -> None:
    body = {"node_url": "http://n", "instance": "i", "agent_version": "1", "total": {}, "runtimes": []}
    url = f"{edge.url}/v1/nodes/register"
    assert requests.post(url, json=body, headers={"Authorization": "Bearer join-secret"}, timeout=10).ok
    unknown = requests.post(url, json=body, headers={"Authorization": "Bearer other"}, timeout=10)
    assert unknown.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer client-secret"},
        {"authorization": "bearer client-secret"},
        {"AUTHORIZATION": "BEARER  client-secret "},
        {"X-UCloud-Sandbox-Token": "client-secret"},
        {"x-ucloud-sandbox-token": "client-secret "},
        {"X-Ucloud-Sandbox-Token": "client-secret", "Authorization": "Basic bmE6bmE="},
    ],
)
def test_both_headers_in_any_case(edge: Edge, headers: dict[str, str]) -> None:
    assert requests.get(f"{edge.url}/v1/sandboxes", headers=headers, timeout=10).status_code == 200


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic client-secret", "client-secret", "Bearer " + "x" * 600]
)
def test_other_headers_are_no_token(edge: Edge, value: str) -> None:
    answer = requests.get(f"{edge.url}/v1/sandboxes", headers={"Authorization": value}, timeout=10)
    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/v1/sandboxes/", "/docs", "/v1/sandboxes/a/b/c"])
def test_unknown_paths_need_a_token_too(edge: Edge, path: str) -> None:
    assert requests.get(edge.url + path, timeout=10).status_code == 401
    known = requests.get(edge.url + path, headers=CLIENT, timeout=10)
    assert known.status_code == 404
    assert body_of(known).code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/v1/sandboxes", "GET, POST"),
        ("HEAD", "/v1/sandboxes/box/files?path=/x", "GET, PUT"),
        ("DELETE", "/healthz", "GET"),
        ("OPTIONS", "/v1/nodes/join-tokens", "DELETE, POST"),
    ],
)
def test_unknown_methods(edge: Edge, method: str, path: str, allow: str) -> None:
    assert requests.request(method, edge.url + path, timeout=10).status_code == 401
    known = requests.request(method, edge.url + path, headers=OPERATOR, timeout=10)
    assert known.status_code == 405
    assert known.headers["allow"] == allow
    if method != "HEAD":
        assert body_of(known).code is ErrorCode.METHOD_NOT_ALLOWED
