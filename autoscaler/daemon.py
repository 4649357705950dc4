"""The schedule: one job that ticks, one that prunes, and an end on SIGTERM; systemd hears of it (sd_notify(3)).

The only module that knows APScheduler.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import SimpleQueue
from types import FrameType
from typing import Final

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_SCHEDULER_STARTED,
    SchedulerEvent,
)
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.blocking import BlockingScheduler

from autoscaler.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

TICK: Final = "tick"
PRUNE: Final = "prune"
PRUNE_SECONDS: Final = 3600
STALLED_SECONDS: Final = 30.0
FAILED: Final = "the tick failed"
_EVENTS: Final = {
    EVENT_JOB_ERROR: (logging.ERROR, "failed"),
    EVENT_JOB_MISSED: (logging.WARNING, "was missed"),
    EVENT_JOB_MAX_INSTANCES: (logging.DEBUG, "still runs, so this round is skipped"),
}

READY: Final = "READY=1"
ALIVE: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"


class Notifier:
    """Sends the state of this process to systemd; without systemd it does nothing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        micros = environ.get("WATCHDOG_USEC", "")
        self.every = int(micros) / 2e6 if micros.isdecimal() and int(micros) else float("inf")
        """Seconds between two `ALIVE`; half of what systemd waits for one."""

    def send(self, state: str) -> None:
        """Send one state, such as `READY`."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("%s could not be sent to systemd: %s", state, error)


class Daemon:
    """Ticks until SIGTERM or SIGINT.

    Args:
        tick: one round; is passed a function that returns whether to leave the rest to the next start.
        prune: is called once an hour.
        seconds: between two ticks.
        notifier: for systemd, which restarts a process that is silent for long; this one is silent when no tick ends.
    """

    def __init__(
        self,
        tick: Callable[[Callable[[], bool]], object],
        prune: Callable[[], None],
        seconds: float,
        notifier: Notifier | None = None,
    ) -> None:
        self._tick = tick
        self._seconds = seconds
        self._notifier = notifier or Notifier()
        self._stop = threading.Event()
        self._started = threading.Event()
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._ticked_at = time.monotonic()
        self._log = ThrottledLog(log, time.monotonic)
        # Jobs are code and state is the journal, so nothing of the schedule is stored.  One thread a job: neither
        # starves the other.
        self._scheduler = BlockingScheduler(
            jobstores={"default": MemoryJobStore()},
            executors={"default": ThreadPoolExecutor(2)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )
        self._scheduler.add_job(self._round, "interval", seconds=seconds, id=TICK, next_run_time=datetime.now(UTC))
        self._scheduler.add_job(prune, "interval", seconds=PRUNE_SECONDS, id=PRUNE)
        self._scheduler.add_listener(self._on_started, EVENT_SCHEDULER_STARTED)
        self._scheduler.add_listener(self._on_event, EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)

    def run(self) -> None:
        """Block until a signal; a round that is running then ends its present call first."""
        handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        ender = threading.Thread(target=self._shut_down, name="end", daemon=True)
        watcher.start()
        ender.start()
        try:
            self._scheduler.start()
        finally:
            self._stop.set()
            self._signals.put(0)
            ender.join()
            watcher.join()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _round(self) -> None:
        self._ticked_at = time.monotonic()
        try:
            self._tick(self._stop.is_set)
        except Exception as error:  # noqa: BLE001 - the next tick tries again
            self._log.report(FAILED, f"{type(error).__name__}: {error}", level=logging.ERROR, trace=True)
        else:
            self._log.resolve(FAILED)
        finally:
            self._ticked_at = time.monotonic()

    def _on_started(self, _event: SchedulerEvent) -> None:
        self._started.set()
        self._notifier.send(READY)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # A handler may interrupt the holder of any lock; SimpleQueue.put is reentrant by its documentation.
        self._signals.put(number)

    def _shut_down(self) -> None:
        number = self._signals.get()
        self._stop.set()
        if number:
            log.info("%s: shutting down", signal.Signals(number).name)
            self._notifier.send(STOPPING)
            self._started.wait()  # a scheduler that has not started yet cannot be shut down
            self._scheduler.shutdown(wait=True)

    def _watch(self) -> None:
        """Wake the scheduler, which goes by the wall clock, where it sleeps on after a jump backwards.

        systemd gets its watchdog message as long as ticks go on.
        """
        patience = max(STALLED_SECONDS, 3 * self._seconds)
        while not self._stop.wait(min(patience / 3, self._notifier.every)):
            if time.monotonic() - self._ticked_at <= patience:
                self._notifier.send(ALIVE)
            else:
                log.warning("no tick for %.0f s; running one now", patience)
                self._scheduler.modify_job(TICK, next_run_time=datetime.now(UTC))

    @staticmethod
    def _on_event(event: SchedulerEvent) -> None:
        error = getattr(event, "exception", None)
        level, outcome = _EVENTS[event.code]
        log.log(level, "job %s %s", event.job_id, outcome, exc_info=error)
