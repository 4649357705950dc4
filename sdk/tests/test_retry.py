"""The decisions behind retries, without a socket."""

import pytest

from ucloud_sandboxes_sdk.errors import TransportError, error_from_answer
from ucloud_sandboxes_sdk.lines import LineSplitter, LineTooLongError
from ucloud_sandboxes_sdk.retry import Backoff, Deadline, may_retry


def test_waits_double_up_to_the_cap_and_spread() -> None:
    backoff = Backoff(base=1.0, cap=4.0)
    assert [backoff.delay(n, None, 0.0) for n in range(4)] == [0.5, 1.0, 2.0, 2.0]
    assert backoff.delay(50, None, 0.999) == pytest.approx(4.0, abs=0.01)


def test_the_service_is_never_asked_earlier_than_it_wants() -> None:
    assert Backoff().delay(0, 7.0, 0.0) == 7.0
    assert 7.0 < Backoff().delay(0, 7.0, 0.9) <= 7.0 * 1.25


@pytest.mark.parametrize(
    ("status", "body", "safe", "again"),
    [
        (503, {"retryable": True}, True, True),
        (503, {"retryable": False}, True, False),
        (503, {}, True, True),
        (502, {"error": "<html>"}, True, True),
        (500, {}, True, False),
        (409, {"retryable": True}, True, True),
        (404, {}, True, False),
        (503, {"retryable": True}, False, False),
    ],
)
def test_an_answer_is_retried_only_when_safe_and_passing(status: int, body: object, safe: bool, again: bool) -> None:
    assert may_retry(error_from_answer(status, body, {}), safe=safe) is again


def test_a_call_that_never_left_may_always_go_again() -> None:
    assert may_retry(TransportError("refused", sent=False), safe=False)
    assert not may_retry(TransportError("reset"), safe=False)
    assert may_retry(TransportError("reset"), safe=True)


def test_a_deadline_runs_on_its_clock_and_stops_at_zero() -> None:
    now = [10.0]
    deadline = Deadline.after(5.0, lambda: now[0])
    now[0] = 12.0
    assert deadline.remaining() == 3.0
    now[0] = 99.0
    assert deadline.remaining() == 0.0


def test_lines_are_whole_however_the_bytes_arrive() -> None:
    splitter = LineSplitter(100)
    text = "eins\nzwei €\n\ndrei\n".encode()
    lines = [line for byte in text for line in splitter.feed(bytes([byte]))]
    assert lines == [b"eins", "zwei €".encode(), b"drei"]
    assert list(LineSplitter(100).feed(text)) == lines


def test_a_line_without_end_is_refused() -> None:
    splitter = LineSplitter(10)
    assert list(splitter.feed(b"12345")) == []
    with pytest.raises(LineTooLongError):
        list(splitter.feed(b"1234567"))
