"""Files into and out of a sandbox: exact bytes, constant memory, never a half-written file at either end."""

import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

from .errors import TransportError
from .results import SandboxUploadResponse
from .transport import (
    BLOCK,
    ApiCall,
    Body,
    Deadline,
    Response,
    ServiceCalls,
    Transport,
    closing_response,
    segment,
    transport_errors,
)

STALL: Final = 120.0  # seconds without a byte; the service answers an upload only when the file lies on its disk
SPOOL_IN_MEMORY: Final = 8 * 1024 * 1024
NO_DEADLINE: Final = 7 * 24 * 3600.0

Progress = Callable[[int, int | None], None]
"""Called with the bytes moved so far and their total, ``None`` where it is not known."""
Content = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO


class FileCalls(ServiceCalls):
    """The calls that move files into and out of sandboxes."""

    def upload_file(
        self, sandbox_id: str, container_path: str, content: Content, *, on_progress: Progress | None = None
    ) -> SandboxUploadResponse:
        """Write a file in the sandbox: missing parents are made, and the file appears whole or not at all.

        Args:
            sandbox_id: where.
            container_path: absolute, or relative to the sandbox's working directory.
            content: text (as UTF-8), bytes, a local path (`os.PathLike`), or an open binary file, read from its
                current position.  Paths and files stream in constant memory; what cannot seek goes through a temporary
                file.
            on_progress: called with bytes sent and their total, for paths and files.

        Raises:
            SandboxFileError: e.g. `DiskFullError`, `IsADirectoryInSandboxError`; `TransferInterruptedError` when the
                sandbox restarted meanwhile.
            TransportError: the connection broke; an upload is never sent twice.
        """
        return upload(self.transport, sandbox_id, container_path, content, on_progress)

    def upload_file_from_path(
        self,
        sandbox_id: str,
        *,
        container_path: str,
        local_path: str | os.PathLike[str],
        on_progress: Progress | None = None,
    ) -> SandboxUploadResponse:
        """Copy a local file into the sandbox, in constant memory; see `upload_file`.

        The two paths go by keyword: earlier SDKs took them in the order opposite to that of every other call, and a
        swap would send the wrong file.  ``upload_file(sandbox_id, container_path, Path(local_path))`` does the same.
        """
        return upload(self.transport, sandbox_id, container_path, Path(local_path), on_progress)

    def download_file(self, sandbox_id: str, container_path: str) -> bytes:
        """Return the whole content of a file, checked against its announced length."""
        target = io.BytesIO()
        download(self.transport, sandbox_id, container_path, target)
        return target.getvalue()

    def download_file_to(
        self, sandbox_id: str, container_path: str, target: BinaryIO, *, on_progress: Progress | None = None
    ) -> int:
        """Copy a file of the sandbox to an open binary file, in constant memory; return its size in bytes.

        Raises:
            FileNotFoundInSandboxError: there is no such file.
            TransportError: it ended early; ``target`` then holds a part of it.
        """
        return download(self.transport, sandbox_id, container_path, target, on_progress)

    def download_file_to_path(
        self,
        sandbox_id: str,
        container_path: str,
        local_path: str | os.PathLike[str],
        *,
        on_progress: Progress | None = None,
    ) -> Path:
        """Copy a file of the sandbox to a local path, which is replaced in one step when all bytes are there.

        Raises:
            FileNotFoundInSandboxError: there is no such file.
            TransportError: it ended early; the local path is as it was.
        """
        local = Path(local_path)
        part = local.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with part.open("xb", buffering=0) as file:
                download(self.transport, sandbox_id, container_path, file, on_progress)
            part.replace(local)
        except BaseException:
            with suppress(FileNotFoundError):
                part.unlink()
            raise
        return local


class _SourceError(Exception):
    """Carries an error of the local file past the layers that would take it for one of the connection."""


class _UploadSource:
    """A source of bytes of known size, cut into blocks."""

    def __init__(self, source: BinaryIO, size: int, progress: Progress | None) -> None:
        self._source = source
        self._progress = progress
        self.size = size

    def blocks(self) -> Iterator[bytes]:
        """Yield the content, exactly ``size`` bytes; what was appended meanwhile is left out."""
        done = 0
        while done < self.size:
            block = self._read(min(BLOCK, self.size - done))
            if not block:
                raise _SourceError(ValueError(f"the source ended after {done} of {self.size} bytes"))
            yield block
            done += len(block)
            if self._progress:
                self._progress(done, self.size)

    def _read(self, amount: int) -> bytes:
        try:
            return self._source.read(amount)
        except OSError as error:
            raise _SourceError(error) from error


def upload(
    transport: Transport, sandbox_id: str, path: str, content: Content, progress: Progress | None = None
) -> SandboxUploadResponse:
    """Write one file in the sandbox; it appears whole or not at all.  Never sent twice."""
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return _put(transport, sandbox_id, path, bytes(content), memoryview(content).nbytes)
    if isinstance(content, os.PathLike):
        with Path(content).open("rb", buffering=0) as file:
            return _put_file(transport, sandbox_id, path, file, progress)
    return _put_file(transport, sandbox_id, path, content, progress)


def download(
    transport: Transport, sandbox_id: str, path: str, target: BinaryIO, progress: Progress | None = None
) -> int:
    """Copy one file of the sandbox to ``target``; return its size in bytes.

    Raises:
        TransportError: it ended before its announced length; ``target`` then holds a part.
    """
    call = ApiCall("GET", _path(sandbox_id), {"path": path}, safe=True)
    deadline = Deadline.after(NO_DEADLINE)
    response = transport.open(call, deadline=Deadline.after(STALL), stall=STALL)
    with closing_response(response):
        total = _announced(response)
        done = 0
        while block := _block(response, path, deadline):
            target.write(block)
            done += len(block)
            if progress:
                progress(done, total)
    if total is not None and done != total:
        raise TransportError(f"{path}: the download ended after {done} of {total} bytes")
    return done


def _put_file(
    transport: Transport, sandbox_id: str, path: str, file: BinaryIO, progress: Progress | None
) -> SandboxUploadResponse:
    size = _size_left(file)
    if size is None:
        # The service takes no body of unknown length: the length is how it notices a truncated file.
        with tempfile.SpooledTemporaryFile(SPOOL_IN_MEMORY) as spool:
            shutil.copyfileobj(file, spool, BLOCK)
            spool.seek(0)
            return _put_file(transport, sandbox_id, path, cast("BinaryIO", spool), progress)
    source = _UploadSource(file, size, progress)
    try:
        return _put(transport, sandbox_id, path, source.blocks(), size)
    except _SourceError as error:
        raise error.args[0] from None


def _put(transport: Transport, sandbox_id: str, path: str, body: Body, size: int) -> SandboxUploadResponse:
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    call = ApiCall("PUT", _path(sandbox_id), {"path": path}, body=body, headers=headers)
    return transport.json(call, SandboxUploadResponse, timeout_seconds=NO_DEADLINE, stall=STALL)


def _path(sandbox_id: str) -> str:
    return f"/v1/sandboxes/{segment(sandbox_id)}/files"


def _size_left(file: BinaryIO) -> int | None:
    """Return the bytes from the current position to the end; ``None`` for what cannot seek, such as a pipe."""
    try:
        here = file.tell()
        size = file.seek(0, os.SEEK_END) - here
        file.seek(here)
    except (OSError, AttributeError, io.UnsupportedOperation):
        return None
    return max(0, size)


def _announced(response: Response) -> int | None:
    text = response.headers.get("Content-Length")
    if text is not None:
        return int(text)
    if "chunked" in response.headers.get("Transfer-Encoding", "").lower():
        return None  # the last chunk marks the end
    raise TransportError("the download has no announced length, so that a cut could not be seen")


def _block(response: Response, path: str, deadline: Deadline) -> bytes:
    with transport_errors(f"download of {path}", deadline):
        return response.read(BLOCK)
