"""Files through the client: exact, in constant memory, and never half of one."""

import io
import os
import threading
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from tests.fakes.gateway import Gateway, error
from tests.fakes.scripted import Reply
from ucloud_sandboxes_sdk import (
    FileNotFoundInSandboxError,
    IsADirectoryInSandboxError,
    SandboxApiError,
    SandboxClient,
    SandboxFileError,
    SandboxHandle,
    TransportError,
)

MIB = 1024 * 1024
ODD_NAMES = ["/plain", "relative", "/with space", "/q'uo\"te", "/new\nline", "/a+b&c=d#e;%f", "/ünï"]


@pytest.mark.parametrize("path", ODD_NAMES)
def test_any_name_round_trips(sandbox: SandboxHandle, gateway: Gateway, path: str) -> None:
    sandbox.upload_file(path, b"\x00\xff")
    assert gateway.files[sandbox.id, path] == b"\x00\xff"
    assert sandbox.download_file(path) == b"\x00\xff"


def test_every_kind_of_source(sandbox: SandboxHandle, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"x" * (2 * MIB + 3))
    seek = io.BytesIO(b"skipped|rest")
    seek.seek(8)
    for content, expected in (
        ("Grüße", "Grüße".encode()),
        (b"", b""),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        (local, local.read_bytes()),
        (seek, b"rest"),
    ):
        assert sandbox.upload_file("/f", content)["size"] == len(expected)
        assert sandbox.download_file("/f") == expected
    sandbox.upload_file_from_path(container_path="/g", local_path=str(local))
    assert sandbox.download_file("/g") == local.read_bytes()


def test_pipe_is_sent_with_its_length(sandbox: SandboxHandle, gateway: Gateway) -> None:
    reader, writer = os.pipe()

    def feed() -> None:
        with os.fdopen(writer, "wb") as end:
            end.write(b"y" * (MIB + 1))

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        sandbox.upload_file("/f", pipe)
    thread.join()
    assert gateway.files[sandbox.id, "/f"] == b"y" * (MIB + 1)
    assert gateway.requests[-1].headers["content-length"] == str(MIB + 1)


def test_progress_is_reported(sandbox: SandboxHandle, tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    local = tmp_path / "f"
    local.write_bytes(b"z" * (MIB + 1))
    sandbox.upload_file_from_path(
        container_path="/f", local_path=local, on_progress=lambda done, total: steps.append((done, total))
    )
    assert steps == [(MIB, MIB + 1), (MIB + 1, MIB + 1)]
    steps.clear()
    sandbox.download_file_to_path("/f", tmp_path / "g", on_progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (MIB + 1, MIB + 1)


class Shrunk(io.BytesIO):
    """Claims to be longer than it is, like a file that is cut while it is read."""

    def seek(self, offset: int, whence: int = 0) -> int:
        return super().seek(offset, whence) + (10 if whence == os.SEEK_END else 0)


def test_source_that_shrinks_leaves_no_partial_file(sandbox: SandboxHandle, gateway: Gateway) -> None:
    with pytest.raises(ValueError, match="ended after 3 of 13 bytes"):
        sandbox.upload_file("/f", Shrunk(b"abc"))
    assert gateway.files == {}


def test_missing_local_file_is_the_builtin_error(sandbox: SandboxHandle, tmp_path: Path, gateway: Gateway) -> None:
    seen = len(gateway.requests)
    with pytest.raises(FileNotFoundError):
        sandbox.upload_file_from_path(local_path=tmp_path / "missing", container_path="/f")
    assert len(gateway.requests) == seen


@pytest.mark.parametrize("cut", [0, 5, MIB + 1])
def test_download_that_ends_early_is_an_error(
    sandbox: SandboxHandle, gateway: Gateway, tmp_path: Path, cut: int
) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    whole = Reply(body=b"x" * (2 * MIB), cut=cut)
    gateway.next("GET", "/files", whole, whole)
    with pytest.raises(TransportError):
        sandbox.download_file("/f")
    with pytest.raises(TransportError):
        sandbox.download_file_to_path("/f", target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_chunked_download_that_ends_early_is_an_error(sandbox: SandboxHandle, gateway: Gateway) -> None:
    gateway.next("GET", "/files", Reply(chunks=[b"abc"], cut=1), Reply(chunks=[b"abc", b"def"]))
    with pytest.raises(TransportError):
        sandbox.download_file("/f")
    assert sandbox.download_file("/f") == b"abcdef"


def test_download_replaces_the_local_file_atomically(sandbox: SandboxHandle, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    sandbox.upload_file("/f", "new")
    assert sandbox.download_file_to_path("/f", target) == target
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_full_local_disk_is_the_builtin_error(sandbox: SandboxHandle) -> None:
    sandbox.upload_file("/f", b"x" * MIB)
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space left"):
        sandbox.download_file_to("/f", full)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.FILE_NOT_FOUND, FileNotFoundInSandboxError),
        (ErrorCode.IS_DIRECTORY, IsADirectoryInSandboxError),
        (ErrorCode.FILE_PERMISSION, SandboxFileError),
    ],
)
def test_errors_are_typed(
    client: SandboxClient, sandbox: SandboxHandle, gateway: Gateway, code: ErrorCode, kind: type[SandboxApiError]
) -> None:
    gateway.next("GET", "/files", error(code, "why"))
    gateway.next("PUT", "/files", error(code, "why"))
    with pytest.raises(kind, match="why"):
        sandbox.download_file("/f")
    with pytest.raises(kind, match="why"):
        sandbox.upload_file("/f", b"x")
