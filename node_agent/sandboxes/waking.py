"""What keeps a sandbox awake, and what puts it to sleep; see `node_agent.sandboxes.pause_gate`."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.states import SandboxState
from node_agent.errors import NodeError
from node_agent.runtime.base import ExecCommand, ExecProcess, SandboxRuntime
from node_agent.sandboxes.manager import SandboxManager
from node_agent.sandboxes.pause_gate import Need
from node_agent.sandboxes.table import Entry, NodeSandbox

FILES_WAIT: Final = 5.0  # seconds for which a pause waits until files on their way have ended
ENTER_WAIT: Final = 10.0  # seconds for which a call waits until a pause is over

_RESUMABLE: Final = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})


class Hold:
    """A sandbox that runs, and is not paused before `release`."""

    def __init__(self, runtime: SandboxRuntime, entry: Entry, need: Need) -> None:
        self.runtime = runtime
        self._entry = entry
        self._need = need
        self._lock = threading.Lock()
        self._held = True

    def release(self) -> None:
        """Let it be paused again.  Idempotent."""
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._entry.gate.leave(self._need)

    @contextlib.contextmanager
    def begin(self, command: ExecCommand) -> Iterator[ExecProcess]:
        """Start a process, and let the sandbox be paused after the block.

        Raises:
            RuntimeFailure: as `SandboxRuntime.exec`.
        """
        try:
            yield self.runtime.exec(self._entry.id, command)
        finally:
            self.release()


async def hold_awake(sandboxes: SandboxManager, sandbox_id: str, generation: int | None, need: Need) -> Hold:
    """Return a hold on the sandbox once it runs; a paused one is resumed.

    Raises:
        NodeError: as `SandboxManager.settled`; ``SANDBOX_NOT_RUNNING``; ``BUSY`` while a pause takes too long.
    """
    entry = sandboxes.settled(sandbox_id, generation)
    if entry.sandbox.state not in _RESUMABLE:
        raise entry.sandbox.not_running()
    entered = entry.gate.enter(need)
    try:
        await _done(entered, ENTER_WAIT, f"sandbox {entry.id} is being paused")
    except BaseException:
        if not entered.cancel():  # it got in after all
            entry.gate.leave(need)
        raise
    hold = Hold(sandboxes.runtime(entry), entry, need)
    try:
        if entry.sandbox.state is not SandboxState.RUNNING:
            await asyncio.shield(asyncio.wrap_future(sandboxes.resume(entry)))
    except BaseException:
        hold.release()
        raise
    return hold


async def pause(sandboxes: SandboxManager, sandbox_id: str, generation: int | None) -> NodeSandbox:
    """Freeze the sandbox once no file is on its way.  Idempotent.

    Raises:
        NodeError: as `SandboxManager.settled`; ``SANDBOX_NOT_RUNNING``; ``BUSY`` where files take too long.
    """
    entry = sandboxes.settled(sandbox_id, generation)
    if entry.sandbox.state is SandboxState.PAUSED:
        return entry.sandbox
    closed = entry.gate.close()
    try:
        await _done(closed, FILES_WAIT, f"sandbox {entry.id} is not paused: files are moved in it, or commands started")
        paused = sandboxes.pause(entry)
    except BaseException:
        entry.gate.open(closed)
        raise
    paused.add_done_callback(lambda _: entry.gate.open(closed))  # whether or not its caller still waits
    return await asyncio.shield(asyncio.wrap_future(paused))


async def _done(future: "Future[None]", seconds: float, otherwise: str) -> None:
    """Wait for the future.

    Raises:
        NodeError: ``BUSY`` with the sentence ``otherwise``: it was not done in time.
    """
    if future.done():
        return
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(asyncio.wrap_future(future))
    except TimeoutError:
        raise NodeError(ErrorCode.BUSY, f"{otherwise}, for {seconds:g} s by now; try again in a moment") from None
