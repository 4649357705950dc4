"""One lock per sandbox: whoever changes the sandbox holds it, and a delete overtakes those that start it.

A `StartAttempt` is a create or a restore in flight.  It is registered before its first step, so that a delete can cut
it short wherever it stands: waiting for an image, for the lock, or for the engine.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure


class StartAttempt:
    """A create or restore in flight, which a delete of the same sandbox cuts short."""

    def __init__(self, sandbox_id: str) -> None:
        self._sandbox_id = sandbox_id
        self._mutex = threading.Lock()
        self._interrupt: Callable[[], object] | None = None
        self._overtaken = False

    @property
    def overtaken(self) -> bool:
        """Whether a delete came since it began."""
        return self._overtaken

    def check(self) -> None:
        """Raise ``CONFLICT`` once a delete came."""
        if self._overtaken:
            raise RuntimeFailure(ErrorCode.CONFLICT, f"sandbox {self._sandbox_id} was deleted while it was started")

    @contextlib.contextmanager
    def interruptible(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Surround a wait that a delete ends by calling ``interrupt`` from its own thread.

        Raises:
            RuntimeFailure: ``CONFLICT`` when the delete came before.
        """
        with self._mutex:
            self.check()
            self._interrupt = interrupt
        try:
            yield
        finally:
            with self._mutex:
                self._interrupt = None

    def cut_short(self) -> None:
        """Make it fail as soon as it can.  Idempotent."""
        with self._mutex:
            self._overtaken = True
            if self._interrupt is not None:
                self._interrupt()


class SandboxLock:
    """The lock of one sandbox in this process, its attempts, and those that wait for a change of its record."""

    def __init__(self, sandbox_id: str) -> None:
        self._sandbox_id = sandbox_id
        self._lock = threading.RLock()
        self._mutex = threading.Lock()
        self._attempts: set[StartAttempt] = set()
        self.changed: Final = threading.Condition()
        """Notified after every change of the record."""

    @contextlib.contextmanager
    def held(self, timeout: float = -1) -> Iterator[None]:
        """Hold the lock.

        Args:
            timeout: in seconds; negative to wait for as long as it takes.

        Raises:
            RuntimeFailure: ``BUSY`` when it cannot be had in time.
        """
        if not self._lock.acquire(timeout=timeout):
            raise RuntimeFailure(
                ErrorCode.BUSY, f"sandbox {self._sandbox_id} is busy with another call; call again in a moment"
            )
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """Hold the lock unless another thread has it; yields whether it is held."""
        held = self._lock.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    @contextlib.contextmanager
    def changing(self, timeout: float = -1) -> Iterator[None]:
        """Hold the lock as `held` does, and wake those that wait for a change once it is released."""
        try:
            with self.held(timeout):
                yield
        finally:
            with self.changed:
                self.changed.notify_all()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[StartAttempt]:
        """Register a create or a restore from here on."""
        attempt = StartAttempt(self._sandbox_id)
        with self._mutex:
            self._attempts.add(attempt)
        try:
            yield attempt
        finally:
            with self._mutex:
                self._attempts.discard(attempt)

    def overtake(self) -> None:
        """Cut short every attempt that has begun; those that begin later are not concerned."""
        with self._mutex:
            attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cut_short()


class SandboxLocks:
    """Locks by sandbox id.  Each lives while somebody holds on to it."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[str, SandboxLock] = weakref.WeakValueDictionary()
        self._mutex = threading.Lock()

    def of(self, sandbox_id: str) -> SandboxLock:
        """Return the lock of a sandbox."""
        with self._mutex:
            lock = self._locks.get(sandbox_id)
            if lock is None:
                lock = self._locks[sandbox_id] = SandboxLock(sandbox_id)
            return lock
