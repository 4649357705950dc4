"""Nobody gets past the gate without the right token, on any route."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests

from gateway.client import GatewayClient
from gateway.http.app import route_table, routes_only
from gateway.http.auth import ACCESS, RouteAccess
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import JoinTokenRequest
from gateway.wire.tokens import TokenRequest, TokenScope
from tests.integration.gateway_http import SESSION, HttpGateway, body_of, join, running_gateway

OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json")}
ROUTES = sorted(route_table(routes_only()))
GUARDED = [route for route in ROUTES if route not in OPEN]
# Who may pass, by the table.
CLIENT, OPERATOR, NODE, OTHER_NODE = "client", "operator", "node", "other node"
PASSES = {
    RouteAccess.CLIENT: {CLIENT, OPERATOR},
    RouteAccess.OPERATOR: {OPERATOR},
    RouteAccess.NODE: {NODE},
    RouteAccess.JOIN: set(),
    RouteAccess.BOOT: {OPERATOR, NODE, OTHER_NODE},
}
CALLERS = [CLIENT, OPERATOR, NODE, OTHER_NODE]
WRONG = [
    (method, path, caller)
    for method, path in GUARDED
    for caller in CALLERS
    if caller not in PASSES[ACCESS[method, path]]
]
RIGHT = [(method, path, caller) for method, path in GUARDED for caller in sorted(PASSES[ACCESS[method, path]])]


@dataclass(frozen=True)
class Guarded:
    """A gateway and the secret of each kind of caller."""

    gateway: HttpGateway
    secrets: dict[str, str]
    revoked: list[str]

    def call(self, method: str, path: str, secret: str | None) -> requests.Response:
        # Only the node's own credential is tried with an id that exists, so that no call changes anything.
        node_id = self.gateway.login.node_id if ACCESS.get((method, path)) is RouteAccess.NODE else "no-node"
        names = {"session_id": SESSION.replace("box", "no-box"), "node_id": node_id, "token_id": "no-token"}
        filled = path.format(sandbox_id="no-box", prepare_id="no-prepare", file_name="f", **names)
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return requests.request(method, self.gateway.url + filled, headers=headers, timeout=10)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as gateway:
        operator = GatewayClient(gateway.url, gateway.secrets[TokenScope.OPERATOR])
        other = join(gateway.url, gateway.secrets[TokenScope.OPERATOR], "other", "http://127.0.0.1:1")
        removed = join(gateway.url, gateway.secrets[TokenScope.OPERATOR], "removed", "http://127.0.0.1:1")
        operator.remove_node(removed.node_id)
        ended = [
            operator.create_token(TokenRequest(name="x", scope=scope))
            for scope in (TokenScope.CLIENT, TokenScope.OPERATOR)
        ]
        for token in ended:
            operator.revoke_token(token.record.id)
        secrets = {
            CLIENT: gateway.secrets[TokenScope.CLIENT],
            OPERATOR: gateway.secrets[TokenScope.OPERATOR],
            NODE: gateway.login.credential,
            OTHER_NODE: other.credential,
        }
        yield Guarded(gateway, secrets, [removed.credential, *(token.token for token in ended)])


def test_exactly_three_routes_are_open() -> None:
    assert {route for route, access in ACCESS.items() if access is RouteAccess.OPEN} == OPEN


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_no_token(guarded: Guarded, method: str, path: str) -> None:
    answer = guarded.call(method, path, None)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert body_of(answer).code is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_revoked_token(guarded: Guarded, method: str, path: str) -> None:
    assert {guarded.call(method, path, secret).status_code for secret in guarded.revoked} == {401}


@pytest.mark.parametrize(("method", "path", "caller"), WRONG)
def test_wrong_scope(guarded: Guarded, method: str, path: str, caller: str) -> None:
    answer = guarded.call(method, path, guarded.secrets[caller])
    assert answer.status_code == 403
    assert body_of(answer).code is ErrorCode.FORBIDDEN


@pytest.mark.parametrize(("method", "path", "caller"), RIGHT)
def test_right_scope(guarded: Guarded, method: str, path: str, caller: str) -> None:
    assert guarded.call(method, path, guarded.secrets[caller]).status_code not in {401, 403}


def test_open_routes_need_none(guarded: Guarded) -> None:
    assert all(guarded.call(method, path, None).status_code == 200 for method, path in OPEN)


def test_a_refused_body_is_never_parsed(guarded: Guarded) -> None:
    gateway = guarded.gateway
    answer = requests.post(f"{gateway.url}/v1/sandboxes", data=b"{not json", timeout=10)
    assert answer.status_code == 401
    register = f"{gateway.url}/v1/nodes/register"
    unknown = {"Authorization": "Bearer other"}
    assert requests.post(register, data=b"{not json", headers=unknown, timeout=10).status_code == 401
    known = {"Authorization": f"Bearer {join_token(gateway)}"}
    assert requests.post(register, data=b"{not json", headers=known, timeout=10).status_code == 422


def test_the_join_route_takes_a_join_token_only(guarded: Guarded) -> None:
    body = {"node_url": "http://n", "instance": "i", "agent_version": "1", "total": {}, "runtimes": []}
    url = f"{guarded.gateway.url}/v1/nodes/register"
    joins = {"Authorization": f"Bearer {join_token(guarded.gateway)}"}
    assert requests.post(url, json=body, headers=joins, timeout=10).ok
    unknown = requests.post(url, json=body, headers={"Authorization": "Bearer other"}, timeout=10)
    assert unknown.status_code == 401


def join_token(gateway: HttpGateway) -> str:
    operator = GatewayClient(gateway.url, gateway.secrets[TokenScope.OPERATOR])
    return operator.join_token(JoinTokenRequest(instance="i", pool="cpu")).token


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer SECRET"},
        {"authorization": "bearer SECRET"},
        {"AUTHORIZATION": "BEARER  SECRET "},
        {"X-UCloud-Sandbox-Token": "SECRET"},
        {"x-ucloud-sandbox-token": "SECRET "},
        {"X-Ucloud-Sandbox-Token": "SECRET", "Authorization": "Basic bmE6bmE="},
    ],
)
def test_both_headers_in_any_case(guarded: Guarded, headers: dict[str, str]) -> None:
    filled = {name: value.replace("SECRET", guarded.secrets[CLIENT]) for name, value in headers.items()}
    assert requests.get(f"{guarded.gateway.url}/v1/sandboxes", headers=filled, timeout=10).status_code == 200


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic SECRET", "SECRET", "Bearer " + "x" * 600])
def test_other_headers_are_no_token(guarded: Guarded, value: str) -> None:
    headers = {"Authorization": value.replace("SECRET", guarded.secrets[CLIENT])}
    assert requests.get(f"{guarded.gateway.url}/v1/sandboxes", headers=headers, timeout=10).status_code == 401


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/v1/sandboxes/", "/docs", "/v1/sandboxes/a/b/c"])
def test_unknown_paths_need_a_token_too(guarded: Guarded, path: str) -> None:
    assert guarded.call("GET", path, None).status_code == 401
    known = guarded.call("GET", path, guarded.secrets[CLIENT])
    assert known.status_code == 404
    assert body_of(known).code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/v1/sandboxes", "GET, POST"),
        ("HEAD", "/v1/sandboxes/box/files?path=/x", "GET, PUT"),
        ("DELETE", "/healthz", "GET"),
        ("OPTIONS", "/v1/nodes/join-tokens", "POST"),
        ("DELETE", "/v1/nodes/join-tokens", "POST"),
        ("POST", "/v1/bundle/manifest", "GET"),
    ],
)
def test_unknown_methods(guarded: Guarded, method: str, path: str, allow: str) -> None:
    assert guarded.call(method, path, None).status_code == 401
    known = guarded.call(method, path, guarded.secrets[OPERATOR])
    assert known.status_code == 405
    assert known.headers["allow"] == allow
    if method != "HEAD":
        assert body_of(known).code is ErrorCode.METHOD_NOT_ALLOWED


def test_every_path_allows_what_the_document_says_and_no_more(guarded: Guarded) -> None:
    paths = routes_only().openapi()["paths"]
    wrong = {}
    for template, operations in paths.items():
        documented = sorted(method.upper() for method in operations)
        path = re.sub(r"\{\w+\}", "x", template)
        for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"} - set(documented):
            answer = guarded.call(method, path, guarded.secrets[OPERATOR])
            if answer.status_code != 405 or answer.headers["allow"] != ", ".join(documented):
                wrong[method, template] = answer.status_code, answer.headers.get("allow")
    assert wrong == {}
