"""Sandboxes as clients see them."""

from collections.abc import Mapping

from gateway.services.ports import Route
from gateway.wire.sandboxes import SandboxEnvelope, SandboxList, SandboxRecord, SandboxSpec
from gateway.wire.states import SandboxState


class SandboxService:
    """Create, find, pause, restart and delete sandboxes; the routes to them."""

    async def create(self, spec: SandboxSpec) -> SandboxEnvelope:
        """Answers when the sandbox runs; ``recovered`` when the id was already there with an equal spec.

        Raises:
            ApiError: ``SPEC_CONFLICT``, ``NEVER_FITS``; ``NO_ROOM`` or ``CREATE_IN_PROGRESS`` when the wait is over and
                the create goes on; ``IMAGE_ERROR``, ``START_ERROR``, ``CAPACITY``, ``DISK_FULL``, ``UNSUPPORTED`` as
                the node told it.
        """
        raise AssertionError

    async def get(self, sandbox_id: str) -> SandboxRecord:
        """The sandbox; one deleted within the last day is still told, in state ``deleted`` with its reason.

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``.
        """
        raise AssertionError

    async def page(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        state: SandboxState | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> SandboxList:
        """One page, oldest first; deleted ones only when ``state`` asks for them.

        Raises:
            ApiError: ``INVALID_REQUEST`` for a cursor that this service did not make.
        """
        raise AssertionError

    async def delete(self, sandbox_id: str) -> SandboxRecord | None:
        """The record, ``deleted`` or (the node has yet to confirm) ``deleting``; ``None`` without such id."""
        raise AssertionError

    async def pause(self, sandbox_id: str) -> SandboxRecord:
        """Freezes it.  Idempotent.

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``, ``SANDBOX_NOT_RUNNING``, ``NODE_UNREACHABLE`` and the node's own refusal.
        """
        raise AssertionError

    async def resume(self, sandbox_id: str) -> SandboxRecord:
        """Lets it go on.  Idempotent.  Raises as `pause`."""
        raise AssertionError

    async def restart(self, sandbox_id: str) -> SandboxRecord:
        """A new generation on the same node with the same workspace; answers when it runs.

        Raises:
            ApiError: as `create` and `pause`.
        """
        raise AssertionError

    async def route(self, sandbox_id: str, *, generation: int | None = None, running: bool = True) -> Route:
        """Where to send a call about the sandbox; counts as activity.

        Args:
            sandbox_id: which.
            generation: the incarnation that the caller means (from a session id); ``None`` takes the present one.
            running: whether the call needs live processes (exec, files, usage): a paused sandbox is resumed, and one
                that is not running refuses.  Without it an ended sandbox is routed too, while its node has it (logs).

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``, ``SANDBOX_NOT_RUNNING`` (with state and reason), ``NODE_UNREACHABLE``,
                ``EXEC_LOST`` when ``generation`` is not the present one.
        """
        raise AssertionError

    def touch(self, sandbox_id: str) -> None:
        """Counts as activity, e.g. while a stream goes on.  Costs no write."""
