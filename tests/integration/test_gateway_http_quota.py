"""A tenant's quota binds its clients on every route that takes something, and operators on none."""

from collections.abc import Iterator

import pytest
import requests

from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.tokens import TokenRequest, TokenScope
from tests.integration.gateway_http import HttpGateway, body_of, running_gateway
from ucloud_sandboxes_sdk import Image, QuotaExceededError, SandboxClient

POLICY = """
[default.quota]
sandboxes = 2
prepared_units = 3

[tenants.fast.quota]
sandboxes = "none"
creates_per_second = 0.001
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpGateway]:
    directory = tmp_path_factory.mktemp("gateway")
    (directory / "policy.toml").write_text(POLICY)
    # The gateway begins with one sandbox of the tenant `default`.
    with running_gateway(directory / "state", settings={"policy_file": directory / "policy.toml"}) as made:
        yield made


def secret_of(gateway: HttpGateway, tenant: str) -> str:
    request = TokenRequest(name=tenant, scope=TokenScope.CLIENT, tenant=tenant)
    secret: str = gateway.loop.call(gateway.services.tokens.make(request)).token
    return secret


def refusal(answer: requests.Response) -> ErrorBody:
    body = body_of(answer)
    assert (answer.status_code, body.code) == (429, ErrorCode.QUOTA_EXCEEDED)
    return body


def test_a_standing_limit_is_final_and_says_where_it_is_set(gateway: HttpGateway) -> None:
    gateway.create("second")
    again = gateway.call("POST", "/v1/sandboxes", json={"id": "second", "image": "alpine"})
    assert again.status_code == 200
    answer = gateway.call("POST", "/v1/sandboxes", json={"id": "third", "image": "alpine"})
    body = refusal(answer)
    assert not body.retryable
    assert "Retry-After" not in answer.headers
    (field,) = body.fields or []
    assert (field.field, field.allowed) == ("sandboxes", "2")
    assert (field.where or "").endswith("policy.toml [default.quota] sandboxes")
    assert gateway.call("GET", "/v1/sandboxes/third").status_code == 404

    by_operator = gateway.call(
        "POST", "/v1/sandboxes", headers=gateway.operator, json={"id": "third", "image": "alpine"}
    )
    assert by_operator.status_code == 201
    gateway.node.end("second")
    gateway.beat()
    # What the operator made counts, so what has ended finds no room to run again.
    assert refusal(gateway.call("POST", "/v1/sandboxes/second/restart")).fields
    assert gateway.call("DELETE", "/v1/sandboxes/third").json()["deleted"]
    assert gateway.call("POST", "/v1/sandboxes/second/restart").status_code == 200


def test_creates_per_second_ask_to_come_back(gateway: HttpGateway) -> None:
    headers = {"Authorization": f"Bearer {secret_of(gateway, 'fast')}"}
    made = gateway.call("POST", "/v1/sandboxes", headers=headers, json={"id": "a", "image": "alpine"})
    assert made.status_code == 201
    answer = gateway.call("POST", "/v1/sandboxes", headers=headers, json={"id": "b", "image": "alpine"})
    assert refusal(answer).retryable
    assert 900 < int(answer.headers["Retry-After"]) <= 1000
    again = gateway.call("POST", "/v1/sandboxes", headers=headers, json={"id": "a", "image": "alpine"})
    assert again.status_code == 200


def test_prepared_units_are_bounded(gateway: HttpGateway) -> None:
    units = {"id": "ahead", "count": 2, "cpus": 1.0}
    assert gateway.call("POST", "/v1/capacity/prepare", json=units).status_code == 201
    assert refusal(gateway.call("POST", "/v1/builders/prepare", json={"count": 2})).fields
    operators = gateway.call("POST", "/v1/builders/prepare", headers=gateway.operator, json={"count": 2})
    assert operators.status_code == 201


def test_the_sdk_raises_at_once_what_it_cannot_wait_for(gateway: HttpGateway) -> None:
    client = SandboxClient(gateway.url, api_token=secret_of(gateway, "small"))
    for name in ("a", "b"):
        client.create_sandbox(id=name, image=Image.from_registry("alpine"))
    with pytest.raises(QuotaExceededError) as caught:
        client.create_sandbox(id="c", image=Image.from_registry("alpine"))
    assert caught.value.fields[0]["field"] == "sandboxes"
    assert caught.value.retryable is False
