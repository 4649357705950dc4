"""Runs commands of this installation: once to their end, or kept alive while `sandboxes up` is in the foreground.

One thread, the main one, starts, restarts and ends children; a thread for each child waits for its death and reports
it.  Children run in sessions of their own, so that Ctrl-C reaches this process alone and it ends them in order.  A
child with ``dies_with_us`` gets SIGKILL from the kernel when this process dies by any means (PR_SET_PDEATHSIG, set by
``setpriv``); the daemons recover from that by design.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import click

from sandboxes.errors import InterruptedStartError
from sandboxes.local.state_dir import open_log

COMMAND_SECONDS: Final = 60.0
FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 30.0
STEADY_AFTER: Final = 15.0  # a child that lived this long starts again with the first delay
PROBE_FIRST: Final = 0.05
PROBE_LONGEST: Final = 0.5
LOG_BYTES: Final = 16 * 1024 * 1024  # of one child's log; the part before is kept once, as NAME.log.1
TAIL_LINES: Final = 5
ERROR: Final = "error: "  # what `sandboxes` puts before the sentence of a failure


def argv_of(*words: str) -> list[str]:
    """Return the argument list of ``sandboxes WORDS`` in this very installation."""
    return [sys.executable, "-m", "sandboxes", *words]


def run_command(
    *words: str, env: Mapping[str, str] | None = None, within: float = COMMAND_SECONDS, may_fail: bool = False
) -> str:
    """Run ``sandboxes WORDS`` to its end and return its stdout.

    Args:
        words: the command's own words.
        env: added to this process's environment.
        within: seconds after which it is killed.
        may_fail: return its stdout also when its exit code is not 0.

    Raises:
        click.ClickException: it took too long, or failed and may not; the sentence ends with the last line of its
            output.
    """
    name = f"'sandboxes {' '.join(words[:2])}'"
    try:
        done = subprocess.run(
            argv_of(*words),
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
            start_new_session=True,  # Ctrl-C is this process's to handle
        )
    except subprocess.TimeoutExpired as error:
        raise click.ClickException(f"{name} took over {within:.0f} s and was killed") from error
    if done.returncode != 0 and not may_fail:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["it wrote nothing"]
        reason = last[0].removeprefix(ERROR)
        raise click.ClickException(f"{name} failed with exit code {done.returncode}: {reason}")
    return done.stdout


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask this process to stop: not SIGHUP where `nohup` had it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM] if ignored else [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def restart_delay(failures: int) -> float:
    """Return the seconds to wait before restarting a child that died ``failures`` times in a row."""
    return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** max(0, failures - 1)))


@dataclass(frozen=True)
class Child:
    """A process to keep alive."""

    name: str
    argv: Sequence[str]
    log: Path
    """Takes stdout and stderr."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own."""
    ready: Callable[[], bool] | None = None
    """Polled until true; bounded in time by itself.  ``None``: ready when it has started."""
    dies_with_us: bool = True
    stop_seconds: float = 20.0
    """From SIGTERM to SIGKILL."""


@dataclass(frozen=True)
class _Died:
    name: str
    pid: int
    code: int | None
    """As `subprocess` returns it; ``None`` for a process that is not a child of this one."""


@dataclass(frozen=True)
class StopRequested:
    """A signal asked for the end."""

    signal: int


class _Running:
    """A child and its current process."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.process: subprocess.Popen[bytes] | None = None
        self.taken_over: int | None = None
        """Process id while it is a process that an earlier supervisor started."""
        self.started = 0.0
        self.log_start = 0
        """Bytes that were in its log when it was started."""
        self.failures = 0
        self.due: float | None = None
        """When to start it again; ``None`` while it runs."""

    @property
    def pid(self) -> int | None:
        """Process id; ``None`` while it does not run."""
        return self.process.pid if self.process is not None else self.taken_over


class ProcessSupervisor:
    """Starts children one after the other, keeps them alive, and ends them in the opposite order.

    All methods belong to the thread that made the object, which must be the main one.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._children: dict[str, _Running] = {}
        self._events: SimpleQueue[_Died | StopRequested] = SimpleQueue()

    def catch_signals(self) -> None:
        """Turn SIGINT, SIGTERM and SIGHUP into a request to stop; under `nohup` SIGHUP stays ignored."""
        for number in stop_signals():
            # SimpleQueue.put may be called from a signal handler: the library promises that it is reentrant.
            signal.signal(number, lambda got, _frame: self._events.put(StopRequested(got)))

    def start(self, child: Child, *, within: float) -> None:
        """Start ``child`` and return once it is ready.

        Args:
            child: what to start.
            within: seconds in which it has to be ready.

        Raises:
            click.ClickException: it or another child died, or it was not ready in time; the sentence ends with the last
                one of who died.
            InterruptedStartError: a signal asked for the end meanwhile; it still runs.
        """
        running = _Running(child)
        self._children[child.name] = running
        self._spawn(running)
        until = time.monotonic() + within
        pause = PROBE_FIRST
        while child.ready is not None and not child.ready():
            event = self._next(min(pause, max(0.0, until - time.monotonic())))
            pause = min(PROBE_LONGEST, pause * 2)
            if isinstance(event, StopRequested):
                raise InterruptedStartError("stopped while starting")
            if event is not None:
                self._refuse_death(event)
            if time.monotonic() >= until:
                self.stop(child.name)
                raise click.ClickException(f"{child.name} was not ready after {within:.0f} s; see {child.log}")

    def take_over(self, child: Child, pid: int) -> None:
        """Keep alive what an earlier supervisor started: when ``pid`` ends, ``child`` is started in its place.

        `stop` leaves that process alone, whose end is its caller's to arrange.
        """
        running = _Running(child)
        running.taken_over, running.started = pid, time.monotonic()
        self._children[child.name] = running
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self._events.put(_Died(child.name, pid, None))
            return
        threading.Thread(target=self._watch_taken_over, args=(child.name, pid, handle), daemon=True).start()

    def wait(self, seconds: float, *, restart: bool = True) -> StopRequested | None:
        """Keep the children alive for at most ``seconds``; return early when a stop is requested.

        Args:
            seconds: for how long.
            restart: start again what dies; otherwise its death is an error.

        Raises:
            click.ClickException: a child died that is not to be started again.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._restart_due()
            self._trim_logs()
            due = [r.due - time.monotonic() for r in self._children.values() if r.due is not None]
            event = self._next(max(0.0, min([left, *due])))
            if isinstance(event, StopRequested):
                return event
            if event is not None and not restart:
                self._refuse_death(event)
            elif event is not None:
                self._note_death(event)
        return None

    def stop(self, name: str) -> None:
        """End one child, if there is one of that name: SIGTERM, its deadline, SIGKILL."""
        running = self._children.pop(name, None)
        if running is None or running.process is None or running.process.poll() is not None:
            return
        running.process.terminate()
        try:
            running.process.wait(running.child.stop_seconds)
        except subprocess.TimeoutExpired:
            self._say(f"{name} did not end within {running.child.stop_seconds:.0f} s and was killed")
            running.process.kill()
            running.process.wait()

    def stop_all(self) -> None:
        """End all children, the last one started first."""
        for name in reversed(list(self._children)):
            self.stop(name)

    def has(self, name: str) -> bool:
        """Tell whether it keeps a child of that name alive."""
        return name in self._children

    def pid(self, name: str) -> int | None:
        """Return the process id of a child; ``None`` while it does not run."""
        running = self._children.get(name)
        return None if running is None else running.pid

    def _next(self, timeout: float) -> _Died | StopRequested | None:
        try:
            return self._events.get(timeout=timeout)
        except Empty:
            return None

    def _spawn(self, running: _Running) -> None:
        child = running.child
        child.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        running.log_start = child.log.stat().st_size if child.log.exists() else 0
        guard = ["setpriv", "--pdeathsig", "KILL", "--"] if child.dies_with_us else []
        with open_log(child.log) as log:
            try:
                process = subprocess.Popen(
                    [*guard, *child.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **child.env},
                    start_new_session=True,
                )
            except OSError as error:
                raise click.ClickException(f"{child.name} cannot be started: {error}") from error
        running.process, running.taken_over, running.started, running.due = process, None, time.monotonic(), None
        threading.Thread(target=self._watch, args=(child.name, process), daemon=True).start()

    def _watch(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self._events.put(_Died(name, process.pid, process.wait()))

    def _watch_taken_over(self, name: str, pid: int, handle: int) -> None:
        select.select([handle], [], [])
        os.close(handle)
        self._events.put(_Died(name, pid, None))

    def _dead(self, event: _Died) -> _Running | None:
        """Return whose death it is; ``None`` for one ended by `stop`, or an older process of the same child."""
        running = self._children.get(event.name)
        return running if running is not None and running.pid == event.pid else None

    def _refuse_death(self, event: _Died) -> None:
        running = self._dead(event)
        if running is None:
            return
        del self._children[event.name]
        last = tail(running.child.log, running.log_start)
        raise click.ClickException(f"{event.name} {ended(event.code)} while starting: {last}")

    def _note_death(self, event: _Died) -> None:
        running = self._dead(event)
        if running is None:
            return
        steady = time.monotonic() - running.started >= STEADY_AFTER
        running.failures = 1 if steady else running.failures + 1
        delay = restart_delay(running.failures)
        running.process, running.taken_over, running.due = None, None, time.monotonic() + delay
        last = tail(running.child.log, running.log_start)
        self._say(f"{event.name} {ended(event.code)}; starting it again in {delay:.1f} s ({running.child.log}): {last}")

    def _restart_due(self) -> None:
        for running in list(self._children.values()):
            if running.due is not None and running.due <= time.monotonic():
                self._spawn(running)

    def _trim_logs(self) -> None:
        for running in self._children.values():
            trim(running.child.log)


def ended(code: int | None) -> str:
    """Describe how a process ended, from the return code of `subprocess`; ``None`` where nobody knows it."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def trim(log: Path) -> None:
    """Keep a log bounded: beyond `LOG_BYTES` its content moves to ``NAME.1`` and the file goes on empty."""
    try:
        if log.stat().st_size <= LOG_BYTES:
            return
        earlier = log.with_name(log.name + ".1")
        earlier.unlink(missing_ok=True)
        with open_log(earlier) as file:
            file.write(log.read_bytes()[-LOG_BYTES:])
        os.truncate(log, 0)  # the child appends, so it goes on at the new end
    except FileNotFoundError:
        return


def tail(log: Path, since: int = 0) -> str:
    """Return the last lines of a log, joined into one; of a command that says why it failed, that line alone.

    Args:
        log: which.
        since: bytes at its beginning that are not looked at: what earlier processes wrote.
    """
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        content = b""
    # Shorter than before: it was emptied meanwhile (`trim`).
    new = content[since:] if since <= len(content) else content
    lines = [line.strip() for line in new[-4096:].decode(errors="replace").splitlines() if line.strip()]
    if lines and lines[-1].startswith(ERROR):
        return lines[-1].removeprefix(ERROR)
    return " | ".join(lines[-TAIL_LINES:]) or "it wrote nothing"
