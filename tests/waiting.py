"""Waiting for what another thread or process brings about, where there is no event to wait for."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Returns as soon as the condition holds; fails the test when it does not come about in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("the condition did not come about in time")
        time.sleep(0.005)
