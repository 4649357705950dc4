"""Errors in their one shape."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from gateway import errors
from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.core.placement import NeverFits, NoRoom
from gateway.core.policy import Policies
from gateway.core.policy_check import Violation
from gateway.core.quota import Excess
from gateway.errors import ApiError
from gateway.http.responses import REQUEST_ID, error_response, from_validation
from gateway.http.tenancy import PRINCIPAL
from gateway.services.tokens import Principal
from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason, WaitReason
from gateway.wire.tokens import TokenScope

SCOPE = {"type": "http", "state": {REQUEST_ID: "r1"}}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_its_status_and_shape(code: ErrorCode) -> None:
    response = error_response(ApiError(code, "because", sandbox_id="box", reasons=["a", "b"]), SCOPE)
    rule = CODE_RULES[code]
    assert response.status_code == rule.status
    body = ErrorBody.model_validate_json(response.body)
    assert (body.code, body.error, body.retryable, body.request_id) == (code, "because", rule.retryable, "r1")
    assert (body.sandbox_id, body.reasons) == ("box", ["a", "b"])
    assert ("retry-after" in response.headers) == rule.retryable


def test_no_client_is_shown_a_regular_expression() -> None:
    wrong = {"id": "a b", "image": "a", "security": {"user": "a b", "cap_add": ["net admin"]}, "working_dir": "x"}
    with pytest.raises(ValidationError) as caught:
        SandboxSpec.model_validate(wrong)
    body = from_validation(caught.value.errors()).body()
    assert {field.field for field in body.fields or []} >= {"id", "security.user", "security.cap_add.0"}
    assert not {"^", "$", "\\", "[A-Z"} & set(body.error) and "pattern" not in body.model_dump_json()


def test_retry_after_is_whole_seconds_rounded_up() -> None:
    response = error_response(ApiError(ErrorCode.NO_ROOM, "full", retry_after=1.2), SCOPE)
    assert response.headers["retry-after"] == "2"


def sandbox_of(tenant: str) -> Sandbox:
    spec = SandboxSpec(id="box", image="busybox")
    made = transitions.accepted(spec, "hash", "op", datetime(2026, 1, 1, tzinfo=UTC))
    # What an engine says of a sandbox names it as the engine knows it.
    detail = f"sandbox {tenant}..box: the name /sandbox-0a1b2c3d-{tenant}..box-1 is in use"
    return replace(made, tenant=tenant, node_id="n-1", detail=detail, reason=DeathReason.START_ERROR)


SANDBOX = sandbox_of("acme")
ARGUMENTS = {
    "sandbox": SANDBOX,
    "tombstone": SANDBOX,
    "sandbox_id": SANDBOX.id,
    "subject": f"sandbox {SANDBOX.id}",
    "tenant": "acme",
    "violations": [Violation("user", SANDBOX.id, f"sandbox {SANDBOX.id}", "the file")],
    "excess": Excess("sandboxes", ("sandbox", "sandboxes"), 1, 1, 1, "policy.toml [tenants.acme.quota] sandboxes"),
    "quota": Policies.parse("[default.quota]\ncreates_per_second = 1", "policy.toml").of("acme")[1],
    "wait_seconds": 1.0,
    "requested": Shape(),
    "answer": NeverFits((f"node n-1 holds {SANDBOX.id}",), Shape()),
    "waiting": 1,
    "waits": NoRoom((f"node n-1 holds {SANDBOX.id}",), WaitReason.NO_ROOM, "room on a node"),
    "short": [f"memory, held by {SANDBOX.id}"],
    "generation": 1,
}
REFUSALS = [
    function
    for _, function in inspect.getmembers(errors, inspect.isfunction)
    if function.__module__ == errors.__name__ and not function.__name__.startswith("_")
]


@pytest.mark.parametrize("refuse", REFUSALS, ids=lambda function: function.__name__)
def test_no_refusal_shows_a_client_a_qualified_id(refuse: Callable[..., ApiError]) -> None:
    wanted = inspect.signature(refuse).parameters
    error = refuse(**{name: ARGUMENTS[name] for name in wanted if name in ARGUMENTS})

    def shown(scope: TokenScope) -> bytes:
        caller = Principal("token", "name", scope, tenant="acme")
        return bytes(error_response(error, {"type": "http", "state": {PRINCIPAL: caller}}).body)

    assert b"acme.." not in shown(TokenScope.CLIENT)
    assert (b"acme..box" in shown(TokenScope.OPERATOR)) == (SANDBOX.id in error.body().model_dump_json())
