"""The client of one service: where it is, its health, and capacity asked for ahead."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from .results import (
    DeleteBuilderResponse,
    DeleteCapacityResponse,
    PrepareBuilderResponse,
    PrepareCapacityResponse,
    PreparedBuildersResponse,
    PreparedCapacityResponse,
    ServiceHealth,
)
from .sandbox import SandboxCalls
from .specs import Image
from .transport import ApiCall, Transport, segment

URL_VARIABLE = "UCLOUD_SANDBOX_URL"
TOKEN_VARIABLE = "UCLOUD_SANDBOX_API_TOKEN"  # noqa: S105 - a variable's name
PREPARED_TTL = 900  # seconds


def sandbox_auth_headers(api_token: str | None) -> dict[str, str]:
    """Return the header that carries a token; nothing without one."""
    token = (api_token or "").strip()
    return {"X-UCloud-Sandbox-Token": token} if token else {}


class SandboxClient(SandboxCalls):
    """Client of one service.  One client serves any number of threads; it keeps connections alive between calls.

    Calls that are safe to repeat (reads, deletes, creates by id) are retried after transient failures, with growing,
    jittered waits.  Calls that are not (exec, input, signals, uploads) are sent once.

    Args:
        base_url: absolute http or https URL of the service, with a path prefix if it has one.
        timeout_seconds: bounds one call, all its attempts and the waits between them.  Creates, transfers and waits
            for processes have bounds of their own.
        api_token: the token that the operator issued; sent with every call.
        headers: sent with every call besides.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_seconds: float = 30.0,
        api_token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.transport = Transport(base_url, {**sandbox_auth_headers(api_token), **(headers or {})})

    @classmethod
    def from_env(cls, *, timeout_seconds: float = 30.0) -> Self:
        """Make a client from ``UCLOUD_SANDBOX_URL`` and ``UCLOUD_SANDBOX_API_TOKEN``.

        Raises:
            ValueError: one of the two is not set; the message says which.
        """
        missing = [name for name in (URL_VARIABLE, TOKEN_VARIABLE) if not os.environ.get(name, "").strip()]
        if missing:
            raise ValueError(
                f"{' and '.join(missing)} must be set: the URL of the service and a client token of it"
                " (`sandboxes up` prints both; `sandboxes token` makes tokens)"
            )
        return cls(
            os.environ[URL_VARIABLE].strip(), timeout_seconds=timeout_seconds, api_token=os.environ[TOKEN_VARIABLE]
        )

    def __repr__(self) -> str:
        return f"SandboxClient({self.transport.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections.  Sandboxes are left as they are."""
        self.transport.close()

    def health(self) -> ServiceHealth:
        """Ask the service for its health; needs no token."""
        return self._call(ApiCall("GET", "/healthz", safe=True), ServiceHealth)

    # -- capacity -----------------------------------------------------------------------------------------------------

    def prepare_capacity(
        self,
        *,
        count: int,
        cpus: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        image: Image | str | None = None,
        parkable: bool = False,
        ttl_seconds: int = PREPARED_TTL,
        prepare_id: str | None = None,
        gpus: int | None = None,
        runtime: str | None = None,
        isolation: str | None = None,
    ) -> PrepareCapacityResponse:
        """Ask for ``count`` units of one shape before they are needed.

        What is prepared counts as demand, so that machines are there when a burst begins.  Each create of the same
        shape claims one unit; units that nobody claims expire.

        Args:
            count: from 1 to 100.
            cpus: cores.
            memory_mb: MiB.
            disk_mb: MiB.  What is left out of the three takes the default of a create; one of them is needed.
            image: only creates of this image claim a unit; ``None`` for all.
            parkable: without effect, kept for older programs.
            ttl_seconds: after which unclaimed units are no longer demand.
            prepare_id: names the request; the same name again replaces it.  ``None`` makes one.
            gpus: GPUs of one unit.
            runtime: as in a create.
            isolation: as in a create.

        Raises:
            NeverFitsError: no machine could hold one unit.
        """
        wanted = {
            "cpus": cpus,
            "memory_mb": memory_mb,
            "disk_mb": disk_mb,
            "image": image.to_sandbox_image() if isinstance(image, Image) else image,
            "parkable": parkable or None,
            "gpus": gpus,
            "runtime": runtime,
            "isolation": isolation,
        }
        given = {key: value for key, value in wanted.items() if value is not None}
        call = _prepare("/v1/capacity/prepare", prepare_id or _new_id("prep"), count, ttl_seconds, given)
        return self._call(call, PrepareCapacityResponse)

    def list_prepared_capacity(self) -> PreparedCapacityResponse:
        """Return ``prepared``, the units that no create has claimed yet, and ``demand``."""
        return self._call(ApiCall("GET", "/v1/capacity/prepare", safe=True), PreparedCapacityResponse)

    def delete_prepared_capacity(self, prepare_id: str) -> DeleteCapacityResponse:
        """Take prepared capacity back; ``deleted`` is ``None`` when there was nothing of that id."""
        call = ApiCall("DELETE", f"/v1/capacity/prepare/{segment(prepare_id)}", safe=True)
        return self._call(call, DeleteCapacityResponse)

    def prepare_builder(
        self, *, count: int = 1, ttl_seconds: int = PREPARED_TTL, prepare_id: str | None = None
    ) -> PrepareBuilderResponse:
        """Ask for builders before they are needed; see `prepare_capacity`."""
        call = _prepare("/v1/builders/prepare", prepare_id or _new_id("builder-prep"), count, ttl_seconds, {})
        return self._call(call, PrepareBuilderResponse)

    def list_prepared_builders(self) -> PreparedBuildersResponse:
        """Return ``prepared_builders`` and ``demand``."""
        return self._call(ApiCall("GET", "/v1/builders/prepare", safe=True), PreparedBuildersResponse)

    def delete_prepared_builder(self, prepare_id: str) -> DeleteBuilderResponse:
        """Take prepared builders back; see `delete_prepared_capacity`."""
        call = ApiCall("DELETE", f"/v1/builders/prepare/{segment(prepare_id)}", safe=True)
        return self._call(call, DeleteBuilderResponse)


def _new_id(kind: str) -> str:
    # With an id from here a second attempt replaces the first, instead of asking twice.
    return f"{kind}-{uuid4().hex[:16]}"


def _prepare(path: str, prepare_id: str, count: int, ttl_seconds: int, shape: Mapping[str, Any]) -> ApiCall:
    body = {"id": prepare_id, "count": count, "ttl_seconds": ttl_seconds, **shape}
    return ApiCall.with_json("POST", path, body, safe=True)
