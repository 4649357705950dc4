"""A gateway process whose PostgreSQL freezes, goes away and comes back, or whose locks somebody else holds."""

from collections.abc import Iterator

import pytest
import requests
from sqlalchemy import make_url

from gateway.client import GatewayClient
from gateway.store.db import PLACEMENT_LOCK
from gateway.wire.errors import ErrorCode
from tests.engines.postgres import Server
from tests.gateway_process import GatewayProcess, gateway_process, new_token
from tests.waiting import wait_until

SECONDS = 60.0
CALLS = [("GET", "/v1/sandboxes"), ("DELETE", "/v1/sandboxes/none"), ("POST", "/v1/sandboxes"), ("GET", "/v1/nodes")]


@pytest.fixture(scope="module")
def database_url(postgres_server: Server) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDBOXES_GATEWAY_DATABASE_URL", database_url)
        return new_token(tmp_path_factory.mktemp("token"), "operator")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, database_url: str, token: str) -> Iterator[GatewayProcess]:
    environ = {"SANDBOXES_GATEWAY_DATABASE_URL": database_url}
    with gateway_process(tmp_path_factory.mktemp("gateway"), environ=environ) as made:
        yield made


def readiness(gateway: GatewayProcess) -> requests.Response:
    return requests.get(f"{gateway.url}/readyz", timeout=SECONDS)


def is_ready(gateway: GatewayProcess) -> bool:
    answer = readiness(gateway)
    assert answer.status_code in (200, 503), answer.text
    assert answer.json()["ok"] is (answer.status_code == 200)
    return answer.status_code == 200


def test_with_its_database_away_it_is_busy_and_says_so(
    gateway: GatewayProcess, token: str, postgres_server: Server
) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    assert GatewayClient(gateway.url, token).nodes() == []
    postgres_server.stop("fast")
    try:
        wait_until(lambda: not is_ready(gateway), SECONDS)
        assert "Retry-After" in readiness(gateway).headers
        for method, path in CALLS:
            body = {"id": "a", "image": "fake"} if method == "POST" else None
            answer = requests.request(method, gateway.url + path, json=body, headers=headers, timeout=SECONDS)
            assert (answer.status_code, answer.json()["code"]) == (503, ErrorCode.BUSY), answer.text
            assert answer.json()["retryable"] is True
            assert "Retry-After" in answer.headers
    finally:
        postgres_server.start()
    wait_until(lambda: is_ready(gateway), SECONDS)
    assert GatewayClient(gateway.url, token).nodes() == []


def test_it_is_not_ready_while_its_database_is_frozen(gateway: GatewayProcess, postgres_server: Server) -> None:
    wait_until(lambda: is_ready(gateway), SECONDS)
    postgres_server.freeze()
    try:
        wait_until(lambda: not is_ready(gateway), SECONDS)
    finally:
        postgres_server.thaw()
    wait_until(lambda: is_ready(gateway), SECONDS)


def test_it_is_not_ready_while_nothing_can_be_placed(
    gateway: GatewayProcess, postgres_server: Server, database_url: str
) -> None:
    wait_until(lambda: is_ready(gateway), SECONDS)
    with postgres_server.admin(make_url(database_url).database or "") as other:
        other.execute("SELECT pg_advisory_lock(%s)", [PLACEMENT_LOCK])
        wait_until(lambda: not is_ready(gateway), SECONDS)
    wait_until(lambda: is_ready(gateway), SECONDS)
