"""Runs the emulator in threads of this process; `__main__` makes a process of it."""

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from tests.fakes.booting import Booter
from tests.fakes.emulation import Clock, Ticker, control_answers
from tests.fakes.hetzner.api import PREFIX, Api
from tests.fakes.hetzner.control import Control, ControlPort
from tests.fakes.web import WebServer

TOKEN = "t" * 64
EPOCH = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
"""Where time begins that stands still."""


@contextlib.contextmanager
def emulator(
    *,
    pace: float = 0.0,
    booter: Booter | None = None,
    token: str = TOKEN,
    api_port: int = 0,
    control_port: int = 0,
) -> Iterator[Control]:
    """Serve a fresh project on the loopback for the length of the ``with`` block.

    Args:
        pace: emulated seconds per real one; 0 lets time stand still but for `Control.advance`.
        booter: brings servers to life; nothing does by default.
        token: the project's only API token.
        api_port: 0 for any that is free.
        control_port: the same.
    """
    api = Api(Clock(time.time() if pace else EPOCH, pace), booter, token)
    state = api.cloud.state
    served = WebServer(api.answer, api_port)
    control = WebServer(control_answers(ControlPort(api).verbs(), state.lock), control_port)
    ticker = Ticker(state.clock, state.lock)
    handle = Control(control.url, f"{served.url}{PREFIX}", token)
    try:
        yield handle
    finally:
        handle.close()
        ticker.close()
        served.close()
        control.close()
        with state.lock:
            api.cloud.servers.stop_all()
        state.effects.close()
