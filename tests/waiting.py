"""Waiting for what another thread or process does, where there is no event to wait for."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return as soon as the condition holds; fail the test when it does not hold in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"the condition did not hold within {seconds:.0f} s")
        time.sleep(0.005)
