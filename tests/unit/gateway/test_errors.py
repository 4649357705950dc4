"""The gateway's error and its body."""

from gateway.core.policy import Quota
from gateway.core.quota import claim_excess
from gateway.errors import ApiError, quota_exceeded
from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.resources import Shape


def test_the_code_decides_status_and_retryable_by_default() -> None:
    assert (ApiError(ErrorCode.NO_ROOM, "x").status, ApiError(ErrorCode.NO_ROOM, "x").retryable) == (503, True)
    assert ApiError(ErrorCode.NO_ROOM, "x", retryable=False).retryable is False


def test_the_body_carries_the_details() -> None:
    error = ApiError(ErrorCode.NO_ROOM, "no room", sandbox_id="a", reasons=["full"], pending_resources=Shape(cpus=1))
    assert error.body("r1") == ErrorBody(
        error="no room", code=ErrorCode.NO_ROOM, retryable=True, sandbox_id="a", reasons=["full"],
        pending_resources=Shape(cpus=1), request_id="r1",
    )  # fmt: skip


def test_a_body_becomes_the_same_error() -> None:
    original = ApiError(ErrorCode.DISK_FULL, "full", retryable=True, sandbox_id="a", state="failed")
    again = ApiError.from_body(original.body(), retry_after=3)
    assert (again.body(), again.retry_after) == (original.body(), 3)


def test_a_request_above_a_quota_is_not_told_to_delete_anything() -> None:
    quota, room = Quota(cpus=2), Shape(cpus=1)
    alone, late = claim_excess(quota, room, Shape(cpus=4)), claim_excess(quota, room, Shape(cpus=2))
    assert alone is not None and late is not None
    assert "delete" not in quota_exceeded("acme", alone).message
    assert "this alone asks for 4; ask for less, or" in quota_exceeded("acme", alone).message
    assert "delete" in quota_exceeded("acme", late).message


def test_a_refusal_of_a_default_says_that_it_is_one_and_what_changes_it() -> None:
    sandbox = Shape(cpus=1, memory_mb=1024, disk_mb=4096)
    alone = claim_excess(Quota(disk_mb=1000), Shape(), sandbox)
    late = claim_excess(Quota(disk_mb=5000), sandbox, sandbox)
    assert alone is not None and late is not None
    named = "4096, the default where a sandbox names no disk_mb"
    assert f"this alone asks for {named}; ask for less by disk_mb (--disk), or" in quota_exceeded("acme", alone).message
    assert f"no room for 4096 more, {named[6:]}; ask" in quota_exceeded("acme", late).message
