"""Every code of the service has a type here, and every type is in the tree that users read."""

import inspect

import pytest

import ucloud_sandboxes_sdk as sdk
from gateway.wire.errors import ErrorCode
from ucloud_sandboxes_sdk import errors

# Codes about the caller's HTTP itself or about the service's inside: the base type says all there is to say.
PLAIN = {ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.TOKEN_USED, ErrorCode.INTERNAL}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_type(code: ErrorCode) -> None:
    error = errors.error_from_answer(500, {"error": "why", "code": code.value, "retryable": True}, {})
    assert (type(error) is sdk.SandboxApiError) == (code in PLAIN)
    assert (str(error), error.code, error.retryable) == ("why", code.value, True)


def test_every_mapped_code_exists_on_the_service() -> None:
    assert set(errors.BY_CODE) <= {code.value for code in ErrorCode}


def test_the_tree_in_the_docstring_is_complete_and_exported() -> None:
    types = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, sdk.SandboxApiError)
    }
    assert all(f" {name}" in (errors.__doc__ or "") or name == "SandboxApiError" for name in types)
    assert types <= set(sdk.__all__)


def test_response_without_a_code_is_typed_by_its_status() -> None:
    error = errors.error_from_answer(403, {"error": "<html>"}, {})
    assert isinstance(error, sdk.AuthenticationError)
    assert error.code is None
    assert error.retryable is None
    assert "302" in str(errors.error_from_answer(302, {}, {}))


@pytest.mark.parametrize(
    ("text", "seconds"), [("2", 2.0), ("0.5", 0.5), ("900", 60.0), ("-1", 0.0), ("soon", None), ("nan", None)]
)
def test_retry_after_is_clamped(text: str, seconds: float | None) -> None:
    assert errors.error_from_answer(503, {}, {"Retry-After": text}).retry_after_seconds == seconds


def test_retry_after_may_be_a_date() -> None:
    error = errors.error_from_answer(503, {}, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert error.retry_after_seconds == 0.0


def test_details_are_properties() -> None:
    body = {"error": "x", "code": "sandbox_not_running", "state": "exited", "reason": "oom", "request_id": "r-1"}
    error = errors.error_from_answer(409, body, {})
    assert isinstance(error, sdk.SandboxNotRunningError)
    assert (error.state, error.reason, error.request_id) == ("exited", "oom", "r-1")
    fields = [{"field": "cpus", "problem": "must be a number"}]
    refused = errors.error_from_answer(422, {"error": "x", "code": "invalid_request", "fields": fields}, {})
    assert isinstance(refused, sdk.InvalidRequestError)
    assert refused.fields == fields


def test_passed_deadline_is_also_a_builtin_timeout() -> None:
    assert issubclass(sdk.DeadlineExceededError, TimeoutError)
