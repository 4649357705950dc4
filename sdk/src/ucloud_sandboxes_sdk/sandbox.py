"""Sandboxes: creating, finding and ending them, and one sandbox in the hands of a program."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Literal, Self, Unpack
from uuid import uuid4

from .cleanup import end_after, repeat_until_found, to_its_end
from .errors import AuthenticationError, InvalidRequestError, NotFoundError, SandboxApiError, TransportError
from .exec import ExecCalls, ExecHandle, ExecOptions, Input
from .files import Content, FileCalls, Progress
from .results import (
    SandboxDeleteResponse,
    SandboxExecResult,
    SandboxInfo,
    SandboxListResponse,
    SandboxLogChunk,
    SandboxResponse,
    SandboxUploadResponse,
    SandboxUsage,
)
from .specs import CreateFields, SandboxSpec, wire_fields
from .transport import ApiCall, Backoff, Deadline, Transport, may_retry, segment

DELETED: Final = "deleted"
SLOW_CALL: Final = 90.0  # a delete or restart waits for the node, which has to end processes first
CREATE_TIMEOUT: Final = 600.0
# The service answers after 25 s at most and goes on with the create; what is silent for longer is a dead connection.
SERVICE_WAIT: Final = 25.0
ATTEMPT_TIMEOUT: Final = 60.0
ANSWER_MARGIN: Final = 5.0  # seconds of an attempt that are left for the way there and back
SILENCE: Final = 90.0  # with no answer at all for so long, there is no service to wait for
CREATE_BACKOFF: Final = Backoff(base=0.25, cap=10.0)


@dataclass(frozen=True)
class CreateProgress:
    """Why a create has not finished yet, reported before each new attempt.

    Attributes:
        sandbox_id: the id that is asked for.
        waited_seconds: since the first attempt.
        retry_in_seconds: until the next one.
        error: how the last attempt failed, e.g. `NoRoomError`.
    """

    sandbox_id: str
    waited_seconds: float
    retry_in_seconds: float
    error: SandboxApiError


NOTHING_BEGUN: Final = (AuthenticationError, InvalidRequestError)
"""The service refused the request itself, before anything was made."""

FIRST_REPORT: Final = 3.0
"""Seconds that the service waits at the first attempt of a create whose caller wants to know why it takes long."""

OnCreateProgress = Callable[[CreateProgress], None]


class _Create:
    """One create: the same call, sent until it succeeds, cannot succeed, or the time is over."""

    def __init__(
        self,
        transport: Transport,
        payload: Mapping[str, Any],
        timeout_seconds: float,
        on_progress: OnCreateProgress | None,
    ) -> None:
        self.may_have_begun = False
        """Whether the service may have a sandbox because of this call."""
        self._transport = transport
        self._id: str = payload["id"]
        self._call = ApiCall.with_json("POST", "/v1/sandboxes", payload, safe=True)
        self._timeout_seconds = timeout_seconds
        self._on_progress = on_progress

    def run(self) -> SandboxResponse:
        """Send the call until it is answered with a sandbox."""
        started = time.monotonic()
        deadline = Deadline.after(self._timeout_seconds)
        silence = Deadline.after(SILENCE)
        attempt = 0
        while True:
            try:
                return self._once(deadline, FIRST_REPORT if self._on_progress and not attempt else SERVICE_WAIT)
            except SandboxApiError as error:
                delay = CREATE_BACKOFF.delay(attempt, error.retry_after_seconds, self._transport.chance())
                if not isinstance(error, TransportError):
                    silence = Deadline.after(SILENCE)
                if not may_retry(error, safe=True) or silence.remaining() <= 0:
                    raise
                if delay >= deadline.remaining():
                    error.add_note(f"gave up after {self._timeout_seconds:.12g} s")
                    raise
                if self._on_progress:
                    self._on_progress(CreateProgress(self._id, time.monotonic() - started, delay, error))
            attempt += 1
            self._transport.sleep(delay)

    def _once(self, deadline: Deadline, service_wait: float) -> SandboxResponse:
        limit = min(ATTEMPT_TIMEOUT, deadline.remaining())
        # The service answers in time to be heard, so that its reason arrives and not only the end of the time.
        wait = min(service_wait, limit - min(ANSWER_MARGIN, limit / 2))
        call = replace(self._call, query={"wait_seconds": round(wait, 3)})
        before, self.may_have_begun = self.may_have_begun, True
        try:
            return self._transport.json_once(call, SandboxResponse, timeout_seconds=limit)
        except SandboxApiError as error:
            if isinstance(error, NOTHING_BEGUN) or (isinstance(error, TransportError) and not error.sent):
                self.may_have_begun = before
            raise


class SandboxCalls(ExecCalls, FileCalls):
    """The calls about sandboxes."""

    def create_sandbox(
        self,
        spec: SandboxSpec | None = None,
        *,
        request_timeout_seconds: float | None = None,
        on_progress: OnCreateProgress | None = None,
        **fields: Unpack[CreateFields],
    ) -> "SandboxHandle":
        """Create a sandbox and return when it runs.

        The same id with an equal spec gives the sandbox that is already there.  Without an id the client makes one, and
        then nobody else can know it: when the create fails, or Ctrl-C or another exception ends it, the client deletes
        what it may have begun.  A sandbox with an id of yours stays as the service has it.

        Args:
            spec: what is wanted.
            request_timeout_seconds: how long to retry while there is no room or the create goes on; 600 by default.
            on_progress: called before each new attempt with why the last one failed, for the first time after a few
                seconds.
            **fields: fields of the spec by name, in its place or over it; ``None`` never replaces.

        Raises:
            SpecConflictError: the id exists with another spec.
            NeverFitsError: no node is or could be large enough.
            ImageError: its image cannot be used; under an id of yours it is kept, with the reason, until it is deleted.
            StartError: it cannot start; kept likewise.
            NoRoomError: the time is over.  Under an id of yours it may still come up: ask for it, or delete it.
            CreateInProgressError: likewise.
            NodeUnreachableError: likewise.
        """
        payload: dict[str, Any] = {**(spec.to_dict() if spec else {}), **wire_fields(fields)}
        named_here = "id" not in payload
        payload.setdefault("id", f"sandbox-{uuid4().hex}")
        limit = CREATE_TIMEOUT if request_timeout_seconds is None else request_timeout_seconds
        create = _Create(self.transport, payload, limit, on_progress)
        try:
            answer = create.run()
            record = answer.get("sandbox")
            if not isinstance(record, dict):
                raise SandboxApiError("the service answered a create without a sandbox", body=answer)
            return SandboxHandle(self, record.get("id") or payload["id"], record, answer)
        except BaseException as error:
            if named_here and create.may_have_begun:
                answered = isinstance(error, SandboxApiError) and error.status_code is not None
                end_after(error, f"sandbox {payload['id']}", lambda: self._take_back(payload["id"], answered))
            raise

    def _take_back(self, sandbox_id: str, answered: bool) -> None:
        """Delete a sandbox whose create may still be on its way, unless the service has answered it."""

        def delete() -> bool:
            return bool(self.delete_sandbox(sandbox_id)["deleted"])

        if answered:
            delete()
        else:
            repeat_until_found(delete, self.transport.sleep)

    def list_sandboxes(
        self, *, labels: Mapping[str, str] | None = None, state: str | None = None, tenant: str | None = None
    ) -> list[SandboxInfo]:
        """Return all sandboxes, oldest first; see `iter_sandboxes`."""
        return list(self.iter_sandboxes(labels=labels, state=state, tenant=tenant))

    def iter_sandboxes(
        self, *, labels: Mapping[str, str] | None = None, state: str | None = None, tenant: str | None = None
    ) -> Iterator[SandboxInfo]:
        """Yield the sandboxes that have these labels and this state, oldest first, read page by page.

        An operator's token yields those of all tenants, or of ``tenant`` alone; a client's only its own tenant's.
        """
        labelled = [f"{k}={v}" for k, v in (labels or {}).items()]
        query: dict[str, object] = {"label": labelled, "state": state, "tenant": tenant}
        while True:
            page = self._call(ApiCall("GET", "/v1/sandboxes", query, safe=True), SandboxListResponse)
            found = page.get("sandboxes")
            yield from (item for item in found if isinstance(item, dict)) if isinstance(found, list) else ()
            if not page.get("next_cursor"):
                return
            query = {**query, "cursor": page["next_cursor"]}

    def get_sandbox(self, sandbox_id: str, *, include_deleted: bool = False) -> SandboxInfo | None:
        """Return one sandbox; ``None`` when there is none of that id.

        Args:
            sandbox_id: which.
            include_deleted: also return one that was deleted within the last day, with its ``reason``; without it a
                deleted sandbox is none.
        """
        try:
            answer = self._call(ApiCall("GET", _sandbox(sandbox_id), safe=True), SandboxResponse)
        except NotFoundError:
            return None
        record = answer.get("sandbox")
        if not isinstance(record, dict) or (record.get("state") == DELETED and not include_deleted):
            return None
        return record

    def attach(self, sandbox_id: str) -> "SandboxHandle":
        """Return a handle to a sandbox that exists.

        Raises:
            NotFoundError: it does not.
        """
        handle = SandboxHandle(self, sandbox_id)
        handle.refresh()
        return handle

    def delete_sandbox(self, sandbox_id: str) -> SandboxDeleteResponse:
        """Delete a sandbox in whatever state it is; ``deleted`` is false when there was none."""
        call = ApiCall("DELETE", _sandbox(sandbox_id), safe=True)
        return self._call(call, SandboxDeleteResponse, timeout_seconds=max(self.timeout_seconds, SLOW_CALL))

    def pause_sandbox(self, sandbox_id: str) -> SandboxResponse:
        """Freeze all processes of a sandbox."""
        return self._call(ApiCall("POST", _sandbox(sandbox_id, "/pause")), SandboxResponse)

    def resume_sandbox(self, sandbox_id: str) -> SandboxResponse:
        """Thaw a paused sandbox."""
        return self._call(ApiCall("POST", _sandbox(sandbox_id, "/resume")), SandboxResponse)

    def restart_sandbox(self, sandbox_id: str) -> SandboxResponse:
        """End the processes of a sandbox and start it again with the same workspace."""
        call = ApiCall("POST", _sandbox(sandbox_id, "/restart"))
        return self._call(call, SandboxResponse, timeout_seconds=max(self.timeout_seconds, SLOW_CALL))

    def get_usage(self, sandbox_id: str) -> SandboxUsage:
        """Return what a running sandbox uses now."""
        return SandboxUsage.from_payload(self._call(ApiCall("GET", _sandbox(sandbox_id, "/usage"), safe=True), dict))

    def read_logs(
        self,
        sandbox_id: str,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        offset: int = 0,
        limit: int | None = None,
    ) -> SandboxLogChunk:
        """Return a piece of the output of the first process.

        Args:
            sandbox_id: of the sandbox.
            stream: which output.
            offset: of its first byte.
            limit: most bytes; the service returns 1 MiB at most.
        """
        query = {"stream": stream, "offset": offset, "limit": limit}
        call = ApiCall("GET", _sandbox(sandbox_id, "/logs"), query, safe=True)
        return SandboxLogChunk.from_payload(self._call(call, dict))

    def iter_logs(self, sandbox_id: str, stream: Literal["stdout", "stderr"] = "stdout") -> Iterator[bytes]:
        """Yield the present output of the first process, in pieces."""
        offset = 0
        while True:
            chunk = self.read_logs(sandbox_id, stream, offset=offset)
            if chunk.data:
                yield chunk.data
            if chunk.eof or not chunk.data:
                return
            offset = chunk.next_offset


class SandboxHandle:
    """A sandbox by its id.  As a context manager it deletes the sandbox at the end, also after Ctrl-C.

    The handle holds nothing open: any number of handles may exist for one sandbox, in several programs.

    Attributes:
        id: the sandbox's id.
        record: the last known state of the sandbox: ``state``, ``reason``, ``node_id``, ``isolation``, ``spec`` …
        create_response: the whole response to the create, where this handle comes from one.
    """

    def __init__(
        self,
        client: SandboxCalls,
        id: str,
        record: SandboxInfo | None = None,
        create_response: SandboxResponse | None = None,
    ) -> None:
        self.client = client
        self.id = id
        self.record: SandboxInfo = record or {"id": id}
        self.create_response: SandboxResponse = create_response or {}

    def __repr__(self) -> str:
        return f"SandboxHandle({self.id!r}, state={self.state!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            to_its_end(self.delete)
        else:
            end_after(error, f"sandbox {self.id}", self.delete)

    @property
    def state(self) -> str | None:
        """Last known state, e.g. ``running``; ``None`` before the service was asked."""
        return self.record.get("state")

    # -- life ---------------------------------------------------------------------------------------------------------

    def refresh(self) -> SandboxInfo:
        """Ask the service for `record` again and return it.

        Raises:
            NotFoundError: there is no such sandbox, or it was deleted; `record` then says why.
        """
        record = self.client.get_sandbox(self.id, include_deleted=True)
        if record is None:
            raise NotFoundError(f"sandbox {self.id}: there is no such sandbox", status_code=404)
        self.record = record
        if record.get("state") == DELETED:
            raise NotFoundError(f"sandbox {self.id}: it was deleted ({record.get('reason')})", status_code=404)
        return record

    def delete(self) -> SandboxDeleteResponse:
        """Delete the sandbox in whatever state it is; deleting one that is gone is fine."""
        return self.client.delete_sandbox(self.id)

    def pause(self) -> SandboxInfo:
        """Freeze all its processes once no file is on its way; memory stays.  Return the new record."""
        return self._update(self.client.pause_sandbox(self.id))

    def resume(self) -> SandboxInfo:
        """Thaw it after `pause`.  Return the new record."""
        return self._update(self.client.resume_sandbox(self.id))

    def restart(self) -> SandboxInfo:
        """End its processes and start it again with the same workspace.  Return the new record."""
        return self._update(self.client.restart_sandbox(self.id))

    def usage(self) -> SandboxUsage:
        """Return what it uses now."""
        return self.client.get_usage(self.id)

    def logs(
        self, stream: Literal["stdout", "stderr"] = "stdout", *, offset: int = 0, limit: int | None = None
    ) -> SandboxLogChunk:
        """Return a piece of the output of its first process; see `SandboxClient.read_logs`."""
        return self.client.read_logs(self.id, stream, offset=offset, limit=limit)

    def iter_logs(self, stream: Literal["stdout", "stderr"] = "stdout") -> Iterator[bytes]:
        """Yield the present output of its first process, in pieces."""
        return self.client.iter_logs(self.id, stream)

    def _update(self, answer: SandboxResponse) -> SandboxInfo:
        if isinstance(record := answer.get("sandbox"), dict):
            self.record = record
        return self.record

    # -- processes ----------------------------------------------------------------------------------------------------

    def exec(
        self,
        command: Sequence[str] | str,
        *,
        input: Input | None = None,
        **options: Unpack[ExecOptions],
    ) -> SandboxExecResult:
        """Run a command to its end; see `SandboxClient.exec`."""
        return self.client.exec(self.id, command, input=input, **options)

    def start_exec(
        self, command: Sequence[str] | str, *, stdin: bool = False, **options: Unpack[ExecOptions]
    ) -> ExecHandle:
        """Start a command and return at once; see `SandboxClient.start_exec`."""
        return self.client.start_exec(self.id, command, stdin=stdin, **options)

    # -- files --------------------------------------------------------------------------------------------------------

    def upload_file(
        self, container_path: str, content: Content, *, on_progress: Progress | None = None
    ) -> SandboxUploadResponse:
        """Write a file; see `SandboxClient.upload_file`."""
        return self.client.upload_file(self.id, container_path, content, on_progress=on_progress)

    def upload_file_from_path(
        self, *, container_path: str, local_path: str | os.PathLike[str], on_progress: Progress | None = None
    ) -> SandboxUploadResponse:
        """Copy a local file into the sandbox; see `SandboxClient.upload_file_from_path`."""
        return self.client.upload_file_from_path(
            self.id, container_path=container_path, local_path=local_path, on_progress=on_progress
        )

    def download_file(self, container_path: str) -> bytes:
        """Return the whole content of a file."""
        return self.client.download_file(self.id, container_path)

    def download_file_to(self, container_path: str, target: BinaryIO, *, on_progress: Progress | None = None) -> int:
        """Copy a file of the sandbox to an open binary file; return its size in bytes."""
        return self.client.download_file_to(self.id, container_path, target, on_progress=on_progress)

    def download_file_to_path(
        self, container_path: str, local_path: str | os.PathLike[str], *, on_progress: Progress | None = None
    ) -> Path:
        """Copy a file of the sandbox to a local path, whole or not at all."""
        return self.client.download_file_to_path(self.id, container_path, local_path, on_progress=on_progress)


def _sandbox(sandbox_id: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{segment(sandbox_id)}{rest}"
