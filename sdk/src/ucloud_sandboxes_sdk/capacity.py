"""Capacity asked for ahead, as calls of the client."""

from typing import Any
from uuid import uuid4

from .specs import Image
from .transport import Call, Transport, segment

DEFAULT_TTL = 900  # seconds


class CapacityCalls:
    """The part of `SandboxClient` that asks for capacity before it is needed.

    What is prepared counts as demand, so that machines are there when a burst begins.  Each create of the same shape
    claims one unit; units that nobody claims expire.
    """

    transport: Transport
    timeout_seconds: float

    def prepare_capacity(  # noqa: PLR0913 - the keywords of older clients, and what a create has beside them
        self,
        *,
        count: int,
        cpus: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        image: Image | str | None = None,
        parkable: bool = False,
        ttl_seconds: int = DEFAULT_TTL,
        prepare_id: str | None = None,
        gpus: int | None = None,
        runtime: str | None = None,
        isolation: str | None = None,
    ) -> dict[str, Any]:
        """Asks for ``count`` units of one shape.

        Args:
            count: from 1 to 100.
            cpus: cores.
            memory_mb: MiB.
            disk_mb: MiB.  What is left out of the three takes the default of a create; one of them is needed.
            image: only creates of this image claim a unit; ``None`` for all.
            parkable: accepted for older programs, without effect.
            ttl_seconds: after which unclaimed units are no demand any more.
            prepare_id: names the request; the same name again replaces it.  ``None`` makes one.
            gpus: GPUs of one unit.
            runtime: as in a create.
            isolation: as in a create.

        Returns:
            ``prepare``, what is prepared now, and ``demand``, all that is wanted.

        Raises:
            NeverFitsError: no machine could hold one unit.
        """
        reference = image.to_sandbox_image() if isinstance(image, Image) else image
        wanted = {
            "cpus": cpus,
            "memory_mb": memory_mb,
            "disk_mb": disk_mb,
            "image": reference,
            "parkable": parkable or None,
            "gpus": gpus,
            "runtime": runtime,
            "isolation": isolation,
        }
        given = {key: value for key, value in wanted.items() if value is not None}
        return self._prepare("/v1/capacity/prepare", "prep", count, ttl_seconds, prepare_id, given)

    def list_prepared_capacity(self) -> dict[str, Any]:
        """``prepared``, what nobody has claimed yet, and ``demand``."""
        return self._capacity_call(Call("GET", "/v1/capacity/prepare", safe=True))

    def delete_prepared_capacity(self, prepare_id: str) -> dict[str, Any]:
        """Takes it back.  ``deleted`` in the answer is null when there was nothing of that id."""
        return self._capacity_call(Call("DELETE", f"/v1/capacity/prepare/{segment(prepare_id)}", safe=True))

    def prepare_builder(
        self, *, count: int = 1, ttl_seconds: int = DEFAULT_TTL, prepare_id: str | None = None
    ) -> dict[str, Any]:
        """Asks for builders; see `prepare_capacity`."""
        return self._prepare("/v1/builders/prepare", "builder-prep", count, ttl_seconds, prepare_id, {})

    def list_prepared_builders(self) -> dict[str, Any]:
        """``prepared_builders`` and ``demand``."""
        return self._capacity_call(Call("GET", "/v1/builders/prepare", safe=True))

    def delete_prepared_builder(self, prepare_id: str) -> dict[str, Any]:
        """Takes them back; see `delete_prepared_capacity`."""
        return self._capacity_call(Call("DELETE", f"/v1/builders/prepare/{segment(prepare_id)}", safe=True))

    def _prepare(
        self, path: str, kind: str, count: int, ttl_seconds: int, prepare_id: str | None, more: dict[str, Any]
    ) -> dict[str, Any]:
        # With a name from here a second try replaces the first, instead of asking twice.
        name = prepare_id or f"{kind}-{uuid4().hex[:16]}"
        body = {"id": name, "count": count, "ttl_seconds": ttl_seconds, **more}
        return self._capacity_call(Call.with_json("POST", path, body, safe=True))

    def _capacity_call(self, call: Call) -> dict[str, Any]:
        return self.transport.json(call, timeout_seconds=self.timeout_seconds)
