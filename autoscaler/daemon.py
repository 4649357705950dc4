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

from autoscaler.throttled_log import Remarks

log = logging.getLogger(__name__)

READY: Final = "READY=1"
ALIVE: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"


class Notifier:
    """Tells systemd where it started this process and listens; anywhere else it does nothing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        micros = environ.get("WATCHDOG_USEC", "")
        self.every = int(micros) / 2e6 if micros.isdecimal() and int(micros) else float("inf")
        """Seconds within which `ALIVE` is to be told; half of what systemd waits for it."""

    def tell(self, words: str) -> None:
        """Sends one state."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                sender.sendto(words.encode(), self._address)
        except OSError as error:
            log.warning("systemd was not told %s: %s", words, error)


TICK: Final = "tick"
PRUNE: Final = "prune"
PRUNE_SECONDS: Final = 3600
STALLED_SECONDS: Final = 30.0
FAILED: Final = "the tick failed"
_EVENTS: Final = {
    EVENT_JOB_ERROR: (logging.ERROR, "failed"),
    EVENT_JOB_MISSED: (logging.WARNING, "was missed"),
    EVENT_JOB_MAX_INSTANCES: (logging.DEBUG, "still runs, so this round is left out"),
}


class Daemon:
    """Ticks until SIGTERM or SIGINT.

    Args:
        tick: one round; gets a function that says whether to leave the rest to the next start.
        prune: what is done once an hour.
        seconds: between two ticks.
        notifier: systemd; it restarts a process that says nothing for long, and this one is silent when no tick ends.
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
        self._remarks = Remarks(log, time.monotonic)
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
        self._scheduler.add_listener(self._begun, EVENT_SCHEDULER_STARTED)
        self._scheduler.add_listener(self._tell, EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)

    def run(self) -> None:
        """Blocks until a signal; a round that runs then ends its present call first."""
        handlers = {number: signal.signal(number, self._caught) for number in (signal.SIGTERM, signal.SIGINT)}
        watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        ender = threading.Thread(target=self._end, name="end", daemon=True)
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
        except Exception as error:  # noqa: BLE001 - the next tick looks anew
            self._remarks.tell(FAILED, f"{type(error).__name__}: {error}", level=logging.ERROR, trace=True)
        else:
            self._remarks.over(FAILED)
        finally:
            self._ticked_at = time.monotonic()

    def _begun(self, _event: SchedulerEvent) -> None:
        self._started.set()
        self._notifier.tell(READY)

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        # A handler may interrupt any lock; SimpleQueue.put is the one call that promises not to mind.
        self._signals.put(number)

    def _end(self) -> None:
        number = self._signals.get()
        self._stop.set()
        if number:
            log.info("%s: ending", signal.Signals(number).name)
            self._notifier.tell(STOPPING)
            self._started.wait()  # a scheduler that has not started yet cannot be shut down
            self._scheduler.shutdown(wait=True)

    def _watch(self) -> None:
        """Runs the tick again when the scheduler, which goes by the wall clock, sleeps on after a jump backwards.

        systemd hears that all is well as long as ticks go on.
        """
        patience = max(STALLED_SECONDS, 3 * self._seconds)
        while not self._stop.wait(min(patience / 3, self._notifier.every)):
            if time.monotonic() - self._ticked_at <= patience:
                self._notifier.tell(ALIVE)
            else:
                log.warning("no tick for %.0f s; asking for one", patience)
                self._scheduler.modify_job(TICK, next_run_time=datetime.now(UTC))

    @staticmethod
    def _tell(event: SchedulerEvent) -> None:
        error = getattr(event, "exception", None)
        level, words = _EVENTS[event.code]
        log.log(level, "job %s %s", event.job_id, words, exc_info=error)
