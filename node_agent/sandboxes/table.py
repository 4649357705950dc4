"""The table of this node's sandboxes: who is there, in which generation, and what they hold.

Memory only.  Everything here takes `Entries.lock`, and what spans several calls is done under it by the caller.
"""

import threading

from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import SandboxState
from node_agent.errors import ApiError
from node_agent.sandboxes import model as core
from node_agent.sandboxes.admission import reserved
from node_agent.sandboxes.entry import Entry, newer
from node_agent.sandboxes.model import Sandbox


class Entries:
    """One entry for each sandbox id: its newest incarnation."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._by_id: dict[str, Entry] = {}

    def sandboxes(self) -> list[Sandbox]:
        """All, as they stand at this moment."""
        with self.lock:
            return [entry.sandbox for entry in self._by_id.values()]

    def held(self, *, without: Entry | None = None) -> Shape:
        """What the sandboxes that are there hold, all but one."""
        with self.lock:
            return reserved(
                entry.sandbox.order.spec.shape
                for entry in self._by_id.values()
                if entry is not without and entry.sandbox.state in core.HOLDING
            )

    def get(self, sandbox_id: str) -> Entry | None:
        """The entry, whatever its generation."""
        with self.lock:
            return self._by_id.get(sandbox_id)

    def has(self, entry: Entry) -> bool:
        """Whether this very incarnation is still the newest."""
        return self.get(entry.id) is entry

    def put(self, entry: Entry) -> None:
        """Takes the place of an older incarnation."""
        with self.lock:
            self._by_id[entry.id] = entry

    def remove(self, entry: Entry) -> None:
        """Takes the entry away, unless a newer one has its place."""
        with self.lock:
            if self.has(entry):
                del self._by_id[entry.id]

    def find(self, sandbox_id: str, generation: int | None) -> Entry:
        """The entry in that generation (``None``: in any).

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``, or ``CONFLICT`` where a newer generation is there.
        """
        entry = self.get(sandbox_id)
        if entry is None or (generation is not None and entry.generation < generation):
            wanted = "" if generation is None else f" in generation {generation}"
            raise ApiError(
                ErrorCode.SANDBOX_NOT_FOUND, f"sandbox {sandbox_id} is not on this node{wanted}", sandbox_id=sandbox_id
            )
        if generation is not None and entry.generation > generation:
            raise newer(entry, generation)
        return entry

    def settled(self, sandbox_id: str, generation: int | None) -> Entry:
        """As `find`, once its create is over.

        Raises:
            ApiError: as `find`; ``CREATE_IN_PROGRESS``.
        """
        entry = self.find(sandbox_id, generation)
        if entry.sandbox.state is SandboxState.CREATING:
            raise ApiError(
                ErrorCode.CREATE_IN_PROGRESS, f"sandbox {sandbox_id} is still being created", sandbox_id=sandbox_id
            )
        return entry
