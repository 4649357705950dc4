"""The audit log as the gateway writes it: a line is in its file before the call takes effect, and before its answer.

Lines of calls that end together are written together, on a thread of their own, so the event loop never waits for a
disk.  "Written" means that the kernel has them: they survive the end of this process.

When the disk is full, the lines are held in memory, copied to the gateway's ordinary log, and written once there is
room.  Meanwhile calls that make something new are refused; so are all others that change something, once `MAX_HELD`
lines are held.  Deletes, revocations and pauses are never refused, because they make room or take a right away: beyond
`MAX_HELD` their lines are in the ordinary log only, and a line in the audit log says how many.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from gateway.core.model import Sandbox
from gateway.errors import ApiError
from gateway.services.tasks import AsyncClock
from gateway.store.audit_files import STARTED, AuditFiles
from gateway.wire.audit import AuditActor, AuditEntry, AuditPage, AuditQuery
from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, SandboxState
from gateway.wire.tenants import tenant_of

log = logging.getLogger(__name__)

MAX_HELD: Final = 10_000
"""Lines held in memory while the disk is full."""
RETRY: Final = 1.0
"""Seconds between two attempts to write held lines."""
BURST: Final = 100
"""Refusals of one caller that are written at once; after them one a second is, and the others are counted."""
COUNT_INTERVAL: Final = 10.0
"""Seconds after which refusals that were only counted are written as one line."""
MAX_CALLERS: Final = 1000
"""Callers whose refusals are counted apart."""

_BY_SERVICE: Final = frozenset({DeathReason.TTL, DeathReason.IDLE, DeathReason.NODE_LOST, DeathReason.EVICTED})
_ENDING: Final = frozenset({SandboxState.DELETING, SandboxState.DELETED, SandboxState.FAILED, SandboxState.LOST})
_MAX_ENDED: Final = 10_000


@dataclass
class _Batch:
    """Lines that are written together."""

    lines: list[bytes] = field(default_factory=list)
    written: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Caller:
    """What one caller may still have written of its refusals."""

    left: float
    at: float
    counted: AuditEntry | None = None
    """The last refusal that was not written, with the count of all of them."""


class AuditLog:
    """Writes and reads the audit log of one gateway."""

    def __init__(self, files: AuditFiles, clock: AsyncClock) -> None:
        self._files = files
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._batch = _Batch()
        self._flusher: asyncio.Task[None] | None = None
        self._held: deque[bytes] = deque()
        self._lost = 0
        self._why = "its disk is full"
        self._callers: OrderedDict[str, _Caller] = OrderedDict()
        self._ended: OrderedDict[tuple[str, int], None] = OrderedDict()

    # -- writing ------------------------------------------------------------------------------------------------------

    async def write(self, entry: AuditEntry) -> None:
        """Return when the line is in the file, or is held because the disk is full."""
        await self._add(entry).written.wait()

    def note(self, entry: AuditEntry) -> None:
        """Write the line without waiting for it."""
        self._add(entry)

    async def write_refusal(self, entry: AuditEntry) -> None:
        """Write the line of a call that changed nothing; beyond `BURST` those of one caller are only counted.

        Otherwise whoever reaches the gateway, without any token, could push everything else out of the log.
        """
        caller = self._caller(entry.token_id or AuditActor.NOBODY)
        if caller.left >= 1:
            caller.left -= 1
            await self.write(entry)
            return
        counted = 0 if caller.counted is None else caller.counted.count or 0
        caller.counted = entry.model_copy(update={"count": counted + 1})

    async def write_counts(self) -> None:
        """Write one line for each caller whose refusals were only counted."""
        for caller in self._callers.values():
            if caller.counted is not None:
                entry, caller.counted = caller.counted, None
                self.note(entry)
        await self._flushed()

    def require_room(self, *, makes: bool) -> None:
        """Refuse a call that could not be written down.

        Args:
            makes: the call makes something new, and so is refused as soon as lines are held.

        Raises:
            ApiError: ``DISK_FULL``.
        """
        if self._held and (makes or len(self._held) >= MAX_HELD):
            raise ApiError(
                ErrorCode.DISK_FULL,
                f"nothing was done, because the gateway's audit log cannot be written ({self._why}); free space there",
                retryable=True,
                retry_after=5,
            )

    def on_change(self, sandbox: Sandbox) -> None:
        """React to a change of a sandbox: write down an end that no client asked for."""
        reason = sandbox.reason
        key = (sandbox.id, sandbox.generation)
        if reason not in _BY_SERVICE or sandbox.state not in _ENDING or key in self._ended:
            return
        self._ended[key] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        target = {"sandbox_id": sandbox.id} | ({"node_id": sandbox.node_id} if sandbox.node_id else {})
        self.note(self._by_service(reason.value, target, tenant_of(sandbox.id)))

    async def started(self) -> None:
        """Write down in which calls the gateway before was killed, and that this one begins to serve."""
        for entry in await asyncio.to_thread(self._files.unresolved):
            self.note(entry)
        self.note(self._by_service(STARTED, {}))

    async def page(self, query: AuditQuery) -> AuditPage:
        """Return lines that were written, oldest first.

        Raises:
            ApiError: ``INVALID_REQUEST``: the cursor is none.
        """
        return await asyncio.to_thread(self._files.page, query)

    # -- background ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write held lines and counts when it is time, for ever."""
        next_counts = self._clock.monotonic() + COUNT_INTERVAL
        while True:
            await self._clock.sleep(RETRY)
            await self._write_held()
            if self._clock.monotonic() >= next_counts:
                next_counts = self._clock.monotonic() + COUNT_INTERVAL
                await self.write_counts()

    async def flush(self) -> None:
        """Write what is left."""
        await self._flushed()
        await self._write_held()

    def close(self) -> None:
        """Close the file."""
        self._thread.shutdown()
        try:
            self._files.close()
        except OSError as error:
            log.warning("the audit log's last lines may not be on the disk yet: %s", error.strerror)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _add(self, entry: AuditEntry) -> _Batch:
        batch = self._batch
        batch.lines.append(entry.line())
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.get_running_loop().create_task(self._flush(), name="audit")
        return batch

    async def _flush(self) -> None:
        while self._batch.lines:
            batch, self._batch = self._batch, _Batch()
            written = 0 if self._held else await self._append(batch.lines)
            self._hold(batch.lines[written:])
            batch.written.set()

    async def _flushed(self) -> None:
        if self._flusher is not None:
            # Who waits may be cancelled, as at the gateway's end; what is being written is others' as well.
            await asyncio.shield(self._flusher)

    async def _append(self, lines: Sequence[bytes]) -> int:
        """Return how many of the lines could be written."""
        day = self._clock.now().date()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._files.append, lines, day)
        except OSError as error:
            self._why = error.strerror or str(error)
            log.error("the audit log cannot be written: %s; its lines are held until it can", self._why)
            return 0

    def _hold(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            log.warning("not in the audit log yet: %s", line.decode().rstrip())
            if len(self._held) < MAX_HELD:
                self._held.append(line)
            else:
                self._lost += 1

    async def _write_held(self) -> None:
        while self._held:
            lines = list(self._held)[:1000]
            written = await self._append(lines)
            for _ in range(written):
                self._held.popleft()
            if written < len(lines):
                return
            if not self._held:
                log.info("the audit log is written again")
                self._write_lost()

    def _write_lost(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            self.note(self._by_service("lines_in_the_log_only", {}).model_copy(update={"count": lost}))

    def _by_service(self, event: str, target: dict[str, str], tenant: str | None = None) -> AuditEntry:
        return AuditEntry(time=self._clock.now(), actor=AuditActor.SERVICE, tenant=tenant, event=event, target=target)

    def _caller(self, key: str) -> _Caller:
        now = self._clock.monotonic()
        caller = self._callers.pop(key, None) or _Caller(BURST, now)
        caller.left, caller.at = min(BURST, caller.left + now - caller.at), now
        self._callers[key] = caller
        if len(self._callers) > MAX_CALLERS:
            _, oldest = self._callers.popitem(last=False)
            if oldest.counted is not None:
                self.note(oldest.counted)
        return caller
