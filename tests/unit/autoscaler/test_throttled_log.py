"""What lasts is logged when it begins, changes and ends, and rarely in between."""

import logging
from pathlib import Path

import pytest

from autoscaler.observe import NO_GATEWAY
from autoscaler.throttled_log import REPEAT_SECONDS, ThrottledLog
from providers.base import Applied, ErrorKind
from tests.scenario.autoscaler.fleet import Fleet
from tests.unit.autoscaler.clocks import HandClock

TROUBLE = "provider fog cannot be listed"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def throttled(clock: HandClock, caplog: pytest.LogCaptureFixture) -> ThrottledLog:
    caplog.set_level(logging.INFO)
    return ThrottledLog(logging.getLogger("autoscaler.provider_polling"), clock.monotonic)


def test_lasting_trouble_is_logged_once_and_repeated_after_a_while(
    throttled: ThrottledLog, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        throttled.report(TROUBLE, "network: no route")
    assert caplog.messages == [f"{TROUBLE}: network: no route"]
    clock.pass_by(REPEAT_SECONDS)
    throttled.report(TROUBLE, "network: no route")
    assert len(caplog.messages) == 2


def test_a_changed_detail_is_logged_but_a_number_is_no_change(
    throttled: ThrottledLog, caplog: pytest.LogCaptureFixture
) -> None:
    throttled.report(TROUBLE, "network: <connection at 0x7f31ac> has not answered for 10 s")
    throttled.report(TROUBLE, "network: <connection at 0x8b90de> has not answered for 20 s")
    assert len(caplog.messages) == 1
    throttled.report(TROUBLE, "auth: the token is refused")
    assert caplog.messages[1:] == [f"{TROUBLE}: auth: the token is refused"]


def test_the_end_is_logged_where_the_beginning_was(throttled: ThrottledLog, caplog: pytest.LogCaptureFixture) -> None:
    throttled.resolve(TROUBLE)
    assert caplog.messages == []
    throttled.report(TROUBLE, "network: no route")
    throttled.resolve(TROUBLE)
    throttled.resolve(TROUBLE)
    assert caplog.messages[1:] == [f"{TROUBLE}: resolved"]
    throttled.report(TROUBLE, "network: no route")
    assert len(caplog.messages) == 3


def test_the_traceback_of_broken_code_is_logged(throttled: ThrottledLog, caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise KeyError("x")
    except KeyError:
        throttled.report(TROUBLE, "KeyError: 'x'", level=logging.ERROR, trace=True)
    assert 'raise KeyError("x")' in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


def test_ticks_do_not_repeat_an_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fleet = Fleet(tmp_path)
    fleet.gateway.unreachable = True
    for _ in range(5):
        fleet.cloud.fail_next("list", ErrorKind.TRANSIENT, Applied.NO)
    for _ in range(5):
        fleet.tick()
    fleet.gateway.unreachable = False
    fleet.tick()
    for subject in ("provider fake cannot be listed", NO_GATEWAY):
        begun, over = (message for message in caplog.messages if message.startswith(subject))
        assert not begun.endswith("resolved")
        assert over == f"{subject}: resolved"
