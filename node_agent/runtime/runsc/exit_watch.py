"""One thread that learns of the end of every sandbox's first process, without asking again and again."""

import os
import selectors
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

from node_agent.host.process import readable
from node_agent.runtime.runsc.control import ControlError, ControlLostError, Pending
from node_agent.runtime.runsc.death import End

OnEnd = Callable[[End], None]
Ask = Callable[[], Pending | None]


@dataclass(eq=False)
class Watch:
    """One watched sandbox."""

    ask: Ask
    pending: Pending | None
    sentry: int
    gofer: int | None
    on_end: OnEnd
    closed: bool = False
    asked_again: bool = False
    lost: bool = False


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

    def add(self, ask: Ask, sentry: int, gofer: int | None, on_end: OnEnd, pending: Pending | None) -> Watch:
        """Calls ``on_end`` once, from a thread of its own, when the first process or the whole sandbox ends.

        Args:
            ask: asks the sandbox for the wait status of its first process.
            sentry: pidfd of its kernel; it belongs to the watcher from here on.
            gofer: pidfd of its file server, likewise; ``None`` where it is gone already.
            on_end: what to call.
            pending: the wait status to come; ``None`` where it could not be asked for.
        """
        watch = Watch(ask, pending, sentry, gofer, on_end)
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
        """Ends the thread and frees what it watches.  Idempotent; nothing may be called afterwards."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            thread = self._thread
        os.eventfd_write(self._wake, 1)
        if thread is not None:
            thread.join()
        self._take_in()
        for watch in {key.data for key in self._selector.get_map().values() if isinstance(key.data, Watch)}:
            self._forget(watch)
        self._selector.close()
        os.close(self._wake)

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
            for source in _sources(watch):
                self._selector.register(source, selectors.EVENT_READ, watch)
        for watch in dropped:
            self._forget(watch)

    def _look_at(self, watch: Watch) -> None:
        self._look_at_gofer(watch)
        ended = readable(watch.sentry, 0)  # before the answer: after its end there is all that it said
        status = self._answer(watch)
        if status is None and not ended:
            return
        # A kernel that ends by itself answers first; one whose file server is killed kills its processes, and tells.
        unanswered = watch.lost or watch.pending is not None
        killed = unanswered if status is None else watch.gofer is None and status == signal.SIGKILL
        self._forget(watch)
        end = End(status, killed)
        threading.Thread(target=watch.on_end, args=(end,), name="sandbox-end", daemon=True).start()

    def _look_at_gofer(self, watch: Watch) -> None:
        if watch.gofer is not None and readable(watch.gofer, 0):
            self._selector.unregister(watch.gofer)
            os.close(watch.gofer)
            watch.gofer = None

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
            if isinstance(error, ControlLostError):
                watch.lost = True
            elif not watch.asked_again:
                # Asked before the first process began, and refused late: it has begun by now.
                self._ask_again(watch)
            return None  # the sentry's own end will tell
        return int(status) if done else None

    def _ask_again(self, watch: Watch) -> None:
        watch.asked_again = True
        watch.pending = watch.ask()
        if watch.pending is not None:
            self._selector.register(watch.pending, selectors.EVENT_READ, watch)

    def _forget(self, watch: Watch) -> None:
        if watch.closed:
            return
        watch.closed = True
        for source in _sources(watch):
            self._selector.unregister(source)
        os.close(watch.sentry)
        if watch.gofer is not None:
            os.close(watch.gofer)
        if watch.pending is not None:
            watch.pending.close()


def _sources(watch: Watch) -> list[int | Pending]:
    return [source for source in (watch.sentry, watch.gofer, watch.pending) if source is not None]
