"""Errors in their one shape."""

import pytest

from gateway.errors import ApiError
from gateway.http.responses import REQUEST_ID, error_response
from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode

SCOPE = {"type": "http", "state": {REQUEST_ID: "r1"}}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_its_status_and_shape(code: ErrorCode) -> None:
    response = error_response(ApiError(code, "because", sandbox_id="box", reasons=["a", "b"]), SCOPE)
    rule = CODE_RULES[code]
    assert response.status_code == rule.status
    body = ErrorBody.model_validate_json(response.body)
    assert (body.code, body.error, body.retryable, body.request_id) == (code, "because", rule.retryable, "r1")
    assert (body.sandbox_id, body.reasons) == ("box", ["a", "b"])
    assert ("retry-after" in response.headers) == (rule.retryable and rule.status in {429, 503})


def test_retry_after_is_whole_seconds_rounded_up() -> None:
    response = error_response(ApiError(ErrorCode.NO_ROOM, "full", retry_after=1.2), SCOPE)
    assert response.headers["retry-after"] == "2"
