"""One thread that learns of the end of every sandbox's first process, without asking again and again."""

import contextlib
import os
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass

from node_agent.host.waiting import readable
from node_agent.runtime.runsc.control import Control, ControlError, ControlLostError, Pending

OnEnd = Callable[[int | None], None]
"""Called with the wait status of the first process, or ``None`` where only the sandbox's end is known."""


@dataclass(eq=False)
class Watch:
    """One watched sandbox."""

    control: Control
    pending: Pending | None
    sentry: int
    on_end: OnEnd
    closed: bool = False
    asked_again: bool = False


class Watcher:
    """Watches sandboxes from one thread, which it starts with the first of them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._added: list[Watch] = []
        self._dropped: list[Watch] = []
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, control: Control, sentry: int, on_end: OnEnd, pending: Pending | None) -> Watch:
        """Calls ``on_end`` once, from a thread of its own, when the first process or the whole sandbox ends.

        Args:
            control: of the sandbox.
            sentry: pidfd of its kernel; it belongs to the watcher from here on.
            on_end: what to call.
            pending: the wait status to come, where it was asked for already.
        """
        if pending is None:
            with contextlib.suppress(ControlLostError):
                pending = control.wait_first()
        watch = Watch(control, pending, sentry, on_end)
        with self._lock:
            self._added.append(watch)
            if self._thread is None:
                self._selector.register(self._wake, selectors.EVENT_READ)
                self._thread = threading.Thread(target=self._run, name="sandbox-ends", daemon=True)
                self._thread.start()
        os.eventfd_write(self._wake, 1)
        return watch

    def drop(self, watch: Watch) -> None:
        """Forgets a sandbox; its ``on_end`` is not called any more unless the call has begun."""
        with self._lock:
            self._dropped.append(watch)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Ends the thread.  Idempotent."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        os.eventfd_write(self._wake, 1)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select():
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                    self._take_in()
                elif not key.data.closed:
                    self._look_at(key.data)

    def _take_in(self) -> None:
        with self._lock:
            added, self._added = self._added, []
            dropped, self._dropped = self._dropped, []
        for watch in added:
            self._selector.register(watch.sentry, selectors.EVENT_READ, watch)
            if watch.pending is not None:
                self._selector.register(watch.pending, selectors.EVENT_READ, watch)
        for watch in dropped:
            self._forget(watch)

    def _look_at(self, watch: Watch) -> None:
        status = self._answer(watch)
        if status is None and not readable(watch.sentry, 0):
            return
        self._forget(watch)
        threading.Thread(target=watch.on_end, args=(status,), name="sandbox-end", daemon=True).start()

    def _answer(self, watch: Watch) -> int | None:
        """The wait status, if it has come."""
        if watch.pending is None:
            return None
        try:
            done, status = watch.pending.take()
        except (ControlError, ControlLostError) as error:
            self._selector.unregister(watch.pending)
            watch.pending.close()
            watch.pending = None
            if isinstance(error, ControlError) and not watch.asked_again:
                # Asked before the first process began, and refused late: it has begun by now.
                self._ask_again(watch)
            return None  # the sentry's own end will tell
        return int(status) if done else None

    def _ask_again(self, watch: Watch) -> None:
        watch.asked_again = True
        with contextlib.suppress(ControlLostError):
            watch.pending = watch.control.wait_first()
            self._selector.register(watch.pending, selectors.EVENT_READ, watch)

    def _forget(self, watch: Watch) -> None:
        if watch.closed:
            return
        watch.closed = True
        self._selector.unregister(watch.sentry)
        os.close(watch.sentry)
        if watch.pending is not None:
            self._selector.unregister(watch.pending)
            watch.pending.close()
