"""Runs the emulator in threads of this process; `__main__` makes a process of it."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from tests.fakes.hetzner.booter import Booter, NoBooter
from tests.fakes.hetzner.clock import Clock
from tests.fakes.hetzner.cloud import Cloud
from tests.fakes.hetzner.control import Control, ControlHandler
from tests.fakes.hetzner.faults import Script
from tests.fakes.hetzner.http import ApiHandler, Server

log = logging.getLogger(__name__)

TOKEN = "t" * 64


@contextlib.contextmanager
def emulator(
    *,
    pace: float = 0.0,
    booter: Booter | None = None,
    token: str = TOKEN,
    api_port: int = 0,
    control_port: int = 0,
) -> Iterator[Control]:
    """A fresh project on the loopback, until the ``with`` block ends.

    Args:
        pace: emulated seconds per real one; 0 lets time stand still but for `Control.advance`.
        booter: brings servers to life; nothing does by default.
        token: the project's only API token.
        api_port: 0 for any that is free.
        control_port: the same.
    """
    cloud, script = Cloud(Clock(pace), booter or NoBooter()), Script()
    changed = threading.Event()
    own = {"cloud": cloud, "script": script}
    api = Server(("127.0.0.1", api_port), type("Api", (ApiHandler,), {**own, "token": token}))
    control = Server(
        ("127.0.0.1", control_port), type("Ctl", (ControlHandler,), {**own, "changed": staticmethod(changed.set)})
    )
    ended = threading.Event()
    threads = [
        threading.Thread(target=api.serve_forever, args=(0.05,), daemon=True),
        threading.Thread(target=control.serve_forever, args=(0.05,), daemon=True),
        threading.Thread(target=_carry_out, args=(cloud,), daemon=True),
    ]
    if pace:
        threads.append(threading.Thread(target=_tick, args=(cloud, changed, ended), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield Control(
            url=f"http://127.0.0.1:{control.server_address[1]}",
            api=f"http://127.0.0.1:{api.server_address[1]}/v1",
            token=token,
        )
    finally:
        ended.set()
        changed.set()
        for server in (api, control):
            server.shutdown()
            server.server_close()
        with cloud.state.lock:
            cloud.servers.stop_all()
        cloud.state.effects.put(None)
        for thread in threads:
            thread.join(60)


def _carry_out(cloud: Cloud) -> None:
    """Boots and stops what servers stand for, outside the lock and in order."""
    while (effect := cloud.state.effects.get()) is not None:
        try:
            effect()
        except Exception:
            # A booter that breaks must not stop the others' servers; its own shows in the log and never registers.
            log.exception("a booter broke")


def _tick(cloud: Cloud, changed: threading.Event, ended: threading.Event) -> None:
    """Lets due things happen where time runs by itself and nobody calls."""
    while not ended.is_set():
        with cloud.state.lock:
            cloud.state.settle()
            due = cloud.state.next_due()
        # A call of the API may add something earlier; half a second is soon enough for that.
        wait = 0.5 if due is None else max(0.0, (due - cloud.state.clock.now()) / cloud.state.clock.pace)
        changed.wait(min(wait, 0.5))
        changed.clear()
