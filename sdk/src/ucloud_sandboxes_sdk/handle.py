"""One sandbox in the hands of a program."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, Unpack

from .errors import NotFoundError
from .exec import ExecHandle, ExecOptions, Input
from .files import Content, Progress
from .results import SandboxExecResult, SandboxLogChunk, SandboxUsage

if TYPE_CHECKING:
    from .client import SandboxClient


class SandboxHandle:
    """A sandbox by its id.  As a context manager it deletes the sandbox at the end.

    The handle holds nothing open: any number of handles may exist for one sandbox, in several programs.

    Attributes:
        id: the sandbox's id.
        record: the sandbox as the service last told it: ``state``, ``reason``, ``node_id``, ``isolation``, ``spec`` …
        create_response: the whole answer of the create, where this handle comes from one.
    """

    def __init__(
        self,
        client: "SandboxClient",
        id: str,
        record: dict[str, Any] | None = None,
        create_response: dict[str, Any] | None = None,
    ) -> None:
        self.client = client
        self.id = id
        self.record = record or {}
        self.create_response = create_response or {}

    def __repr__(self) -> str:
        return f"SandboxHandle({self.id!r}, state={self.state!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    @property
    def state(self) -> str | None:
        """State as last told, e.g. ``running``."""
        return self.record.get("state")

    # -- life ---------------------------------------------------------------------------------------------------------

    def refresh(self) -> dict[str, Any]:
        """Asks the service for `record` again.

        Raises:
            NotFoundError: there is no such sandbox.
        """
        record = self.client.get_sandbox(self.id)
        if record is None:
            raise NotFoundError(f"sandbox {self.id}: there is no such sandbox", status_code=404)
        self.record = record
        return record

    def delete(self) -> dict[str, Any]:
        """Deletes the sandbox in whatever state it is; deleting one that is gone is fine."""
        return self.client.delete_sandbox(self.id)

    def pause(self) -> dict[str, Any]:
        """Freezes all its processes; memory stays.  Returns the new record."""
        return self._told(self.client.pause_sandbox(self.id))

    def resume(self) -> dict[str, Any]:
        """Thaws it after `pause`.  Returns the new record."""
        return self._told(self.client.resume_sandbox(self.id))

    def restart(self) -> dict[str, Any]:
        """Ends its processes and starts it anew with the same workspace.  Returns the new record."""
        return self._told(self.client.restart_sandbox(self.id))

    def usage(self) -> SandboxUsage:
        """What it uses now."""
        return self.client.get_usage(self.id)

    def logs(
        self, stream: Literal["stdout", "stderr"] = "stdout", *, offset: int = 0, limit: int | None = None
    ) -> SandboxLogChunk:
        """A piece of the output of its first process, from byte ``offset`` on (at most 1 MiB)."""
        return self.client.read_logs(self.id, stream, offset=offset, limit=limit)

    def iter_logs(self, stream: Literal["stdout", "stderr"] = "stdout") -> Iterator[bytes]:
        """All there is now of the output of its first process, in pieces."""
        return self.client.iter_logs(self.id, stream)

    # -- processes ----------------------------------------------------------------------------------------------------

    def exec(
        self,
        command: Sequence[str] | str,
        *,
        input: Input | None = None,
        **options: Unpack[ExecOptions],
    ) -> SandboxExecResult:
        """Runs a command to its end; see `SandboxClient.exec`."""
        return self.client.exec(self.id, command, input=input, **options)

    def start_exec(
        self, command: Sequence[str] | str, *, stdin: bool = False, **options: Unpack[ExecOptions]
    ) -> ExecHandle:
        """Starts a command and returns at once; see `SandboxClient.start_exec`."""
        return self.client.start_exec(self.id, command, stdin=stdin, **options)

    # -- files --------------------------------------------------------------------------------------------------------

    def upload_file(
        self, container_path: str, content: Content, *, on_progress: Progress | None = None
    ) -> dict[str, Any]:
        """Writes a file; see `SandboxClient.upload_file`."""
        return self.client.upload_file(self.id, container_path, content, on_progress=on_progress)

    def upload_file_from_path(
        self, local_path: str | os.PathLike[str], container_path: str, *, on_progress: Progress | None = None
    ) -> dict[str, Any]:
        """Copies a local file into the sandbox."""
        return self.client.upload_file_from_path(self.id, local_path, container_path, on_progress=on_progress)

    def download_file(self, container_path: str) -> bytes:
        """The whole content of a file."""
        return self.client.download_file(self.id, container_path)

    def download_file_to(self, container_path: str, target: BinaryIO, *, on_progress: Progress | None = None) -> int:
        """Copies a file of the sandbox to an open binary file; returns its size."""
        return self.client.download_file_to(self.id, container_path, target, on_progress=on_progress)

    def download_file_to_path(
        self, container_path: str, local_path: str | os.PathLike[str], *, on_progress: Progress | None = None
    ) -> Path:
        """Copies a file of the sandbox to a local path, whole or not at all."""
        return self.client.download_file_to_path(self.id, container_path, local_path, on_progress=on_progress)

    def _told(self, answer: dict[str, Any]) -> dict[str, Any]:
        if isinstance(record := answer.get("sandbox"), dict):
            self.record = record
        return self.record
