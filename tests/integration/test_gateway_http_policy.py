"""The policy binds clients on every route by which they ask for something, and binds operators only to the always."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from gateway.client import GatewayClient
from gateway.wire.errors import ErrorCode
from gateway.wire.system import PolicyValue
from gateway.wire.tokens import TokenRequest, TokenScope
from tests.integration.gateway_http import HttpGateway, LogLines, body_of, running_gateway
from tests.waiting import wait_until

POLICY = """
[default.policy]
max_cpus = 2
default_ttl_seconds = 600

[tenants.acme.policy]
root = []
max_cpus = 8
"""
ADDED = {"security": {"cap_add": ["NET_RAW"]}}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpGateway]:
    directory = tmp_path_factory.mktemp("gateway")
    (directory / "policy.toml").write_text(POLICY)
    with running_gateway(directory / "state", settings={"policy_file": directory / "policy.toml"}) as made:
        yield made


def create(gateway: HttpGateway, headers: dict[str, str], sandbox_id: str, **spec: Any) -> requests.Response:
    body = {"id": sandbox_id, "image": "alpine", **spec}
    return gateway.call("POST", "/v1/sandboxes", headers=headers, json=body)


def of_tenant(gateway: HttpGateway, tenant: str) -> dict[str, str]:
    request = TokenRequest(name=tenant, scope=TokenScope.CLIENT, tenant=tenant)
    secret = gateway.loop.call(gateway.services.tokens.make(request)).token
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (ADDED, "security.cap_add"),
        ({"security": {"cap_drop": []}}, "security.cap_drop"),
        ({"isolation": "runc"}, "isolation"),
        ({"cpus": 3}, "cpus"),
        ({"image": "169.254.169.254/latest"}, "image"),
    ],
)
def test_a_client_is_refused_before_anything_is_written(gateway: HttpGateway, spec: dict[str, Any], field: str) -> None:
    answer = create(gateway, gateway.client, "refused", **spec)
    body = body_of(answer)
    assert (answer.status_code, body.code, body.retryable) == (403, ErrorCode.POLICY_DENIED, False)
    assert [found.field for found in body.fields or []] == [field]
    assert gateway.call("GET", "/v1/sandboxes/refused").status_code == 404


def test_the_refusal_names_the_line_of_the_file(gateway: HttpGateway) -> None:
    fields = body_of(create(gateway, gateway.client, "refused", cpus=3)).fields or []
    assert fields[0].allowed == "at most 2"
    assert (fields[0].where or "").endswith("policy.toml [default.policy] max_cpus")


def test_each_tenant_has_its_own_policy(gateway: HttpGateway) -> None:
    acme = of_tenant(gateway, "acme")
    assert create(gateway, acme, "wide", cpus=3).status_code == 201
    answer = create(gateway, acme, "root", security={"user": "0"})
    assert [found.field for found in body_of(answer).fields or []] == ["security.user"]
    answer = gateway.call("POST", "/v1/sandboxes/wide/exec", headers=acme, json={"command": ["id"], "user": "root"})
    assert (answer.status_code, body_of(answer).code) == (403, ErrorCode.POLICY_DENIED)


def test_operators_are_bound_only_to_what_nobody_may_have(gateway: HttpGateway) -> None:
    assert create(gateway, gateway.operator, "free", cpus=4, **ADDED).status_code == 201
    reaching = {"isolation": "runc", "security": {"cap_add": ["SYS_ADMIN"]}}
    answer = create(gateway, gateway.operator, "reaching", **reaching)
    assert body_of(answer).code is ErrorCode.POLICY_DENIED


def test_a_restart_is_a_start_again(gateway: HttpGateway) -> None:
    assert create(gateway, gateway.operator, "made-by-operator", **ADDED).status_code == 201
    answer = gateway.call("POST", "/v1/sandboxes/made-by-operator/restart")
    assert (answer.status_code, body_of(answer).code) == (403, ErrorCode.POLICY_DENIED)
    assert gateway.call("POST", "/v1/sandboxes/made-by-operator/restart", headers=gateway.operator).status_code == 200


def test_a_restart_is_bound_by_the_ttl_that_was_set_since_the_create(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    with running_gateway(tmp_path / "state", settings={"policy_file": path}) as gateway:

        def restarted(sandbox_id: str, headers: dict[str, str]) -> float | None:
            answer = gateway.call("POST", f"/v1/sandboxes/{sandbox_id}/restart", headers=headers)
            assert answer.status_code == 200, answer.text
            ends = answer.json()["sandbox"]["expires_at"]
            return None if ends is None else (datetime.fromisoformat(ends) - datetime.now(UTC)).total_seconds()

        for name in ("for-ever", "operators"):
            assert create(gateway, gateway.client, name).json()["sandbox"]["expires_at"] is None
        create(gateway, gateway.client, "too-long", ttl_seconds=7200)
        create(gateway, gateway.client, "short", ttl_seconds=600)
        path.write_text("[default.policy]\nmax_ttl_seconds = 3600\n")
        gateway.services.policies.look()
        left = restarted("for-ever", gateway.client)
        assert left is not None
        assert 3500 < left <= 3600
        assert (restarted("short", gateway.client) or 3600) <= 600
        assert restarted("operators", gateway.operator) is None
        answer = gateway.call("POST", "/v1/sandboxes/too-long/restart")
        assert [found.field for found in body_of(answer).fields or []] == ["ttl_seconds"]
        path.write_text("[default.policy]\nmax_ttl_seconds = 60\ndefault_ttl_seconds = 30\n")
        gateway.services.policies.look()
        assert (restarted("for-ever", gateway.client) or 3600) <= 30


def test_capacity_ahead_is_bound_too(gateway: HttpGateway) -> None:
    answer = gateway.call("POST", "/v1/capacity/prepare", json={"count": 1, "cpus": 3})
    assert (answer.status_code, body_of(answer).code) == (403, ErrorCode.POLICY_DENIED)
    assert gateway.call("POST", "/v1/capacity/prepare", json={"count": 1, "cpus": 1}).status_code == 201


def test_a_sandbox_without_a_ttl_has_the_default_and_its_spec_stays_as_sent(gateway: HttpGateway) -> None:
    def lifetime(sandbox: dict[str, Any]) -> float | None:
        if sandbox["expires_at"] is None:
            return None
        ends, began = (datetime.fromisoformat(sandbox[name]) for name in ("expires_at", "created_at"))
        return (ends - began).total_seconds()

    made = create(gateway, gateway.client, "no-ttl").json()["sandbox"]
    assert (lifetime(made), made["spec"]["ttl_seconds"]) == (600, None)
    again = create(gateway, gateway.client, "no-ttl")
    assert (again.status_code, again.json()["sandbox"]["expires_at"]) == (200, made["expires_at"])
    assert lifetime(create(gateway, gateway.client, "own-ttl", ttl_seconds=60).json()["sandbox"]) == 60
    assert lifetime(create(gateway, gateway.operator, "operators").json()["sandbox"]) is None


def test_a_changed_file_holds_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[default.policy]\nmax_cpus = 1\n")
    with running_gateway(tmp_path / "state", settings={"policy_file": path}) as gateway:
        assert create(gateway, gateway.client, "two", cpus=2).status_code == 403
        path.write_text("[default.policy]\nmax_cpus = 2\n")
        wait_until(lambda: create(gateway, gateway.client, "two", cpus=2).status_code == 201)


def test_a_file_that_became_wrong_is_told_without_any_call(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[tenants.acme.policy]\nmax_cpus = 1\n")
    with running_gateway(tmp_path / "state", settings={"policy_file": path}) as gateway:
        operator = GatewayClient(gateway.url, gateway.secrets[TokenScope.OPERATOR])
        assert operator.policy("acme").problem is None
        with LogLines("gateway.services.policies") as lines:
            path.write_text("[tenants.acme.policy]\nmax_cpu = 1\n")
            assert "[tenants.acme.policy] max_cpu" in lines.next("max_cpu").getMessage()
        answer = operator.policy("acme")
        assert "max_cpu" in (answer.problem or "")
        assert answer.policy["max_cpus"] == PolicyValue(value=1.0, where=f"{path} [tenants.acme.policy] max_cpus")
        ready = operator.readiness()
        assert (ready.ok, len(ready.problems), "acme" in str(ready)) == (True, 1, False)
        path.write_text("[tenants.acme.policy]\nmax_cpus = 2\n")
        wait_until(lambda: operator.policy("acme").policy["max_cpus"].value == 2.0)
        assert operator.readiness().problems == []


def test_an_operator_sees_what_is_in_use_of_a_quota(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "state") as gateway:
        operator = GatewayClient(gateway.url, gateway.secrets[TokenScope.OPERATOR])
        answer = operator.policy("default")
        assert (answer.file, answer.used.slots, answer.quota["sandboxes"].value) == (None, 1, None)
        assert operator.policy("nobody").used.slots == 0
