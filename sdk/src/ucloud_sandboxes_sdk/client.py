"""The client of one service."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, Unpack
from uuid import uuid4

from . import create, exec, files
from .capacity import CapacityCalls
from .errors import NotFoundError, SandboxApiError
from .exec import ExecHandle, ExecOptions, Input
from .files import Content, Progress
from .handle import SandboxHandle
from .results import SandboxExecResult, SandboxLogChunk, SandboxUsage
from .specs import SandboxSpec, wire_fields
from .transport import Call, Transport, segment

URL_VARIABLE = "UCLOUD_SANDBOX_URL"
TOKEN_VARIABLE = "UCLOUD_SANDBOX_API_TOKEN"  # noqa: S105 - a variable's name
SLOW_CALL = 90.0  # a delete or restart waits for the node, which has to end processes first


def sandbox_auth_headers(api_token: str | None) -> dict[str, str]:
    """The header that carries a token; empty without one."""
    token = (api_token or "").strip()
    return {"X-UCloud-Sandbox-Token": token} if token else {}


class SandboxClient(CapacityCalls):
    """Talks to one service.  One client serves any number of threads; it keeps connections alive between calls.

    Args:
        base_url: absolute http or https URL of the service, with a path prefix if it has one.
        timeout_seconds: bounds one call, all its tries and the waits between them.  Creates, transfers and waits for
            processes have bounds of their own.
        api_token: what the operator gave; sent with every call.
        headers: sent with every call besides.

    Calls that are safe to repeat (reads, deletes, creates by id) are repeated after failures that pass, with growing,
    jittered waits.  Calls that are not (exec, input, signals, uploads) are sent once.
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
        """A client from ``UCLOUD_SANDBOX_URL`` and ``UCLOUD_SANDBOX_API_TOKEN``.

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
        """Closes idle connections.  Sandboxes are left as they are."""
        self.transport.close()

    def health(self) -> dict[str, Any]:
        """The service's word on its own health; needs no token."""
        return self._call(Call("GET", "/healthz", safe=True))

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    def create_sandbox(
        self,
        spec: SandboxSpec | None = None,
        *,
        request_timeout_seconds: float | None = None,
        on_progress: create.OnCreateProgress | None = None,
        **fields: Any,
    ) -> SandboxHandle:
        """Creates a sandbox and returns when it runs.

        Args:
            spec: what is wanted.
            request_timeout_seconds: how long to ask again while there is no room or the create goes on; 600 by default.
            on_progress: called before each new try, with why the last one did not do.
            **fields: fields of the spec by name, in its place or over it; ``None`` never replaces.  Without an ``id``
                one is made.

        The same id with an equal spec gives the sandbox that is already there.

        Raises:
            SpecConflictError: the id exists with another spec.
            NeverFitsError: no node is or could be large enough.
            ImageError, StartError: it cannot start; the sandbox is kept, with the reason, until it is deleted.
            NoRoomError, CreateInProgressError, NodeUnreachableError: the time is over.  The service may still bring
                it up: ask by its id, or delete it.
        """
        payload = (spec.to_dict() if spec else {}) | wire_fields(fields)
        payload.setdefault("id", f"sandbox-{uuid4().hex}")
        limit = create.CREATE_TIMEOUT if request_timeout_seconds is None else request_timeout_seconds
        answer = create.create(self.transport, payload, limit, on_progress)
        record = answer.get("sandbox")
        if not isinstance(record, dict):
            raise SandboxApiError("the service answered a create without a sandbox", body=answer)
        return SandboxHandle(self, str(record.get("id") or payload["id"]), record, answer)

    def list_sandboxes(
        self, *, labels: Mapping[str, str] | None = None, state: str | None = None
    ) -> list[dict[str, Any]]:
        """The records of all sandboxes, oldest first; see `iter_sandboxes`."""
        return list(self.iter_sandboxes(labels=labels, state=state))

    def iter_sandboxes(
        self, *, labels: Mapping[str, str] | None = None, state: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The records of all sandboxes that have these labels and this state, oldest first, read page by page."""
        query: dict[str, object] = {"label": [f"{k}={v}" for k, v in (labels or {}).items()], "state": state}
        while True:
            page = self._call(Call("GET", "/v1/sandboxes", query, safe=True))
            found = page.get("sandboxes")
            yield from (item for item in found if isinstance(item, dict)) if isinstance(found, list) else ()
            if not page.get("next_cursor"):
                return
            query = {**query, "cursor": page["next_cursor"]}

    def get_sandbox(self, sandbox_id: str) -> dict[str, Any] | None:
        """The record of one sandbox; ``None`` when there is none of that id."""
        try:
            answer = self._call(Call("GET", _sandbox(sandbox_id), safe=True))
        except NotFoundError:
            return None
        record = answer.get("sandbox")
        return record if isinstance(record, dict) else None

    def attach(self, sandbox_id: str) -> SandboxHandle:
        """A handle to a sandbox that exists.

        Raises:
            NotFoundError: it does not.
        """
        handle = SandboxHandle(self, sandbox_id)
        handle.refresh()
        return handle

    def delete_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """Deletes a sandbox in whatever state it is.  ``deleted`` in the answer is false when there was none."""
        call = Call("DELETE", _sandbox(sandbox_id), safe=True)
        return self.transport.json(call, timeout_seconds=max(self.timeout_seconds, SLOW_CALL))

    def pause_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """Freezes all processes of a sandbox."""
        return self._call(Call("POST", _sandbox(sandbox_id, "/pause")))

    def resume_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """Thaws a paused sandbox."""
        return self._call(Call("POST", _sandbox(sandbox_id, "/resume")))

    def restart_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """Ends a sandbox's processes and starts it anew with the same workspace."""
        call = Call("POST", _sandbox(sandbox_id, "/restart"))
        return self.transport.json(call, timeout_seconds=max(self.timeout_seconds, SLOW_CALL))

    def get_usage(self, sandbox_id: str) -> SandboxUsage:
        """What a running sandbox uses now."""
        return SandboxUsage.from_payload(self._call(Call("GET", _sandbox(sandbox_id, "/usage"), safe=True)))

    def read_logs(
        self,
        sandbox_id: str,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        offset: int = 0,
        limit: int | None = None,
    ) -> SandboxLogChunk:
        """A piece of the output of the first process, from byte ``offset`` on (at most 1 MiB)."""
        query = {"stream": stream, "offset": offset, "limit": limit}
        return SandboxLogChunk.from_payload(self._call(Call("GET", _sandbox(sandbox_id, "/logs"), query, safe=True)))

    def iter_logs(self, sandbox_id: str, stream: Literal["stdout", "stderr"] = "stdout") -> Iterator[bytes]:
        """All there is now of the output of the first process, in pieces."""
        offset = 0
        while True:
            chunk = self.read_logs(sandbox_id, stream, offset=offset)
            if chunk.data:
                yield chunk.data
            if chunk.eof or not chunk.data:
                return
            offset = chunk.next_offset

    # -- processes ----------------------------------------------------------------------------------------------------

    def exec(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        *,
        input: Input | None = None,
        **options: Unpack[ExecOptions],
    ) -> SandboxExecResult:
        """Runs a command to its end and returns all of its output.

        Args:
            sandbox_id: where.
            command: program and arguments; no shell is put around them.
            input: what the process reads on stdin (text, bytes, or an open binary file); without it stdin is empty.
            **options: see `ExecOptions`.

        ``timeout_seconds`` is kept by the service: it kills the whole process group, and the result carries the output
        so far with ``timed_out`` set and exit code 124.  Nothing is raised for it, unlike in earlier SDKs, which left
        the process running.  Without it a command may take as long as its sandbox lives.

        Raises:
            SandboxNotRunningError: the sandbox is paused or has ended.
            ExecLostError: the outcome cannot be known, e.g. because the node restarted.
            TransportError: the start was sent and no answer came.  The command may run; it is never sent twice.
        """
        if input is None:
            return exec.run(self, sandbox_id, command, options)
        return exec.run_with_input(self, sandbox_id, command, input, options)

    def start_exec(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        *,
        stdin: bool = False,
        wait_seconds: float | None = None,
        **options: Unpack[ExecOptions],
    ) -> ExecHandle:
        """Starts a command and returns a handle to follow it.

        Args:
            sandbox_id: where.
            command: program and arguments; no shell is put around them.
            stdin: whether input will follow; without it the process reads an empty stdin.
            wait_seconds: wait this long for the end, so that a quick command's events come with the answer.
            **options: see `ExecOptions`.
        """
        answer = exec.start(
            self.transport,
            sandbox_id,
            command,
            stdin=stdin,
            wait_seconds=wait_seconds,
            timeout_seconds=self.timeout_seconds,
            options=options,
        )
        session = answer["session"]
        return ExecHandle(self, session["id"], sandbox_id, session, first_events=answer.get("events") or ())

    def get_exec(self, session_id: str) -> ExecHandle:
        """A handle to a session that was started before, perhaps by another program."""
        session = self.get_exec_session(session_id)["session"]
        return ExecHandle(self, session_id, session["sandbox_id"], session)

    def get_exec_session(self, session_id: str) -> dict[str, Any]:
        """Where a session stands: ``{"session": {…}}``."""
        return self._call(Call("GET", _exec(session_id), safe=True))

    def read_exec_events(
        self, session_id: str, *, after: int = 0, limit: int = 100, wait_seconds: float = 0.0
    ) -> dict[str, Any]:
        """One page of events after a sequence number: ``{"session": {…}, "events": […]}``.

        Waits up to ``wait_seconds`` (the service's own bound is 20 s) while there are none and the process runs.
        """
        query = {"after": after, "limit": limit, "wait_seconds": wait_seconds}
        call = Call("GET", _exec(session_id, "/events"), query, safe=True)
        return self.transport.json(call, timeout_seconds=self.timeout_seconds + wait_seconds)

    def write_exec_stdin(self, session_id: str, data: str | bytes, *, eof: bool = False) -> dict[str, Any]:
        """One piece of input (16 MiB of JSON at most), sent once."""
        return self._call(Call.with_json("POST", _exec(session_id, "/stdin"), exec.stdin_payload(data, eof=eof)))

    def close_exec_stdin(self, session_id: str) -> dict[str, Any]:
        """The end of the input."""
        return self._call(Call("POST", _exec(session_id, "/close-stdin")))

    def signal_exec(self, session_id: str, signal: int = 15) -> dict[str, Any]:
        """A signal, by number, to the whole process group."""
        return self._call(Call.with_json("POST", _exec(session_id, "/signal"), {"signal": signal}))

    # -- files --------------------------------------------------------------------------------------------------------

    def upload_file(
        self, sandbox_id: str, container_path: str, content: Content, *, on_progress: Progress | None = None
    ) -> dict[str, Any]:
        """Writes a file in the sandbox: missing parents are made, and the file appears whole or not at all.

        Args:
            sandbox_id: where.
            container_path: absolute, or relative to the sandbox's working directory.
            content: text (as UTF-8), bytes, a local path (`os.PathLike`), or an open binary file, read from where it
                stands.  Paths and files stream in constant memory; what cannot seek goes through a temporary file.
            on_progress: called with bytes sent and their total, for paths and files.

        Raises:
            SandboxFileError: e.g. `DiskFullError`, `IsADirectoryInSandboxError`.
            TransportError: the connection broke; an upload is never sent twice.
        """
        return files.upload(self.transport, sandbox_id, container_path, content, on_progress)

    def upload_file_from_path(
        self,
        sandbox_id: str,
        local_path: str | os.PathLike[str],
        container_path: str,
        *,
        on_progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Copies a local file into the sandbox, in constant memory."""
        return files.upload(self.transport, sandbox_id, container_path, Path(local_path), on_progress)

    def download_file(self, sandbox_id: str, container_path: str) -> bytes:
        """The whole content of a file, checked against its announced length."""
        target = io.BytesIO()
        files.download(self.transport, sandbox_id, container_path, target)
        return target.getvalue()

    def download_file_to(
        self, sandbox_id: str, container_path: str, target: BinaryIO, *, on_progress: Progress | None = None
    ) -> int:
        """Copies a file of the sandbox to an open binary file, in constant memory; returns its size in bytes.

        Raises:
            FileNotFoundInSandboxError: there is no such file.
            TransportError: it ended early; ``target`` then holds a part of it.
        """
        return files.download(self.transport, sandbox_id, container_path, target, on_progress)

    def download_file_to_path(
        self,
        sandbox_id: str,
        container_path: str,
        local_path: str | os.PathLike[str],
        *,
        on_progress: Progress | None = None,
    ) -> Path:
        """Copies a file of the sandbox to a local path, which is replaced when all bytes are there."""
        return files.download_to_path(self.transport, sandbox_id, container_path, local_path, on_progress)

    def _call(self, call: Call) -> dict[str, Any]:
        return self.transport.json(call, timeout_seconds=self.timeout_seconds)


def _sandbox(sandbox_id: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{segment(sandbox_id)}{rest}"


def _exec(session_id: str, rest: str = "") -> str:
    return f"/v1/exec/{segment(session_id)}{rest}"
