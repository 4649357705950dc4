"""Files over real HTTP, the real scripts under the host's busybox, and the fake runtime."""

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gateway.wire import limits
from gateway.wire.states import DeathReason
from node_agent.files import transfer
from tests.fakes.gateway import CONTROL_TOKEN
from tests.fakes.node import NodeUnderTest
from tests.fakes.node_fixtures import box, node
from tests.waiting import wait_until

__all__ = ["box", "node"]

NAMES = [
    "plain",
    "with space",
    "-dash",
    "--help",
    "quote'\"`$(x)",
    "new\nline",
    "ends with newline\n",
    "ünïcode-€-😀",
    "a/b/c/deep",
    "..dots",
    "star*?[x]",
    "back\\slash",
    "x" * 255,
]


def put(node: NodeUnderTest, path: str, data: object) -> requests.Response:
    return node.call("PUT", "/v1/sandboxes/box/files", params={"path": path}, data=data)


def get(node: NodeUnderTest, path: str) -> requests.Response:
    return node.call("GET", "/v1/sandboxes/box/files", params={"path": path})


def code(answer: requests.Response) -> str:
    assert answer.status_code >= 400, answer.status_code
    found: str = answer.json()["code"]
    return found


@pytest.fixture
def workspace(node: NodeUnderTest, box: str) -> Iterator[Path]:
    path = node.node._settings.root / "fake" / box / "workspace"
    yield path
    assert not [p for p in path.rglob(".upload-*")], "an upload left its temporary file"


@pytest.mark.parametrize("name", NAMES)
def test_any_name_goes_up_and_comes_down(node: NodeUnderTest, workspace: Path, name: str) -> None:
    data = os.urandom(1000)
    body = put(node, name, data)
    assert body.status_code == 200, body.text
    assert body.json() == {"ok": True, "sandbox_id": "box", "path": name, "size": 1000}
    assert (workspace / name).read_bytes() == data
    assert get(node, name).content == data


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_048_576, 50_000_001])
def test_every_size_is_exact(node: NodeUnderTest, workspace: Path, size: int) -> None:
    data = os.urandom(size)
    assert put(node, "sized", data).status_code == 200
    answer = get(node, "sized")
    assert answer.headers["content-length"] == str(size)
    assert hashlib.sha256(answer.content).digest() == hashlib.sha256(data).digest()


def test_a_file_is_replaced_in_one_step_and_keeps_its_mode(node: NodeUnderTest, workspace: Path) -> None:
    put(node, "tool", b"old")
    (workspace / "tool").chmod(0o755)
    before = (workspace / "tool").stat().st_ino
    put(node, "tool", b"new")
    after = (workspace / "tool").stat()
    assert ((workspace / "tool").read_bytes(), after.st_mode & 0o777) == (b"new", 0o755)
    assert after.st_ino != before


def test_a_symlink_is_followed_and_stays(node: NodeUnderTest, workspace: Path) -> None:
    put(node, "target", b"old")
    (workspace / "link").symlink_to("target")
    put(node, "link", b"new")
    assert (workspace / "link").is_symlink()
    assert (workspace / "target").read_bytes() == b"new"
    assert get(node, "link").content == b"new"


def test_directories_are_refused(node: NodeUnderTest, workspace: Path) -> None:
    (workspace / "folder").mkdir(exist_ok=True)
    for path in ("folder", "folder/", ".", "/", "not-there/"):
        assert code(put(node, path, b"x")) == "is_directory"
    for path in ("folder", ".", "/"):
        assert code(get(node, path)) == "is_directory"


def test_a_parent_that_is_a_file_is_refused(node: NodeUnderTest, workspace: Path) -> None:
    put(node, "file", b"x")
    for path in ("file/below", "file/below/deep"):
        assert code(put(node, path, b"x")) == "not_a_directory"
        assert code(get(node, path)) == "not_a_directory"


def test_a_missing_file_is_not_found(node: NodeUnderTest, workspace: Path) -> None:
    (workspace / "dangling").symlink_to("nowhere")
    for path in ("missing", "no/such/folder/file", "/no-such-folder/file", "dangling"):
        assert code(get(node, path)) == "file_not_found"


def test_what_is_not_a_regular_file_is_refused(node: NodeUnderTest, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    assert code(get(node, "pipe")) == code(put(node, "pipe", b"x")) == "unsupported"


@pytest.mark.parametrize("path", ["/proc/version", "/proc/filesystems", "/sys/kernel/mm/transparent_hugepage/enabled"])
def test_a_file_whose_size_says_nothing_is_read_to_its_end(node: NodeUnderTest, box: str, path: str) -> None:
    answer = get(node, path)
    assert answer.content == Path(path).read_bytes()
    assert answer.headers["content-length"] == str(len(answer.content))


def test_a_file_that_cannot_be_read_is_never_an_empty_one(node: NodeUnderTest, box: str) -> None:
    assert code(get(node, "/dev/null")) == code(get(node, "/dev/zero")) == "unsupported"
    assert code(get(node, "/sys/bus/platform/drivers_probe")) == "file_permission"


def test_a_file_without_a_size_and_without_an_end_is_refused(
    node: NodeUnderTest, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MAX_UNSIZED", 100)
    assert len(Path("/proc/self/status").read_bytes()) > 100
    assert code(get(node, "/proc/self/status")) == "unsupported"
    put(node, "sized", bytes(200))
    assert len(get(node, "sized").content) == 200


def test_a_file_that_grows_while_it_is_read_is_a_beginning_of_it(node: NodeUnderTest, workspace: Path) -> None:
    stop = threading.Event()

    def grow() -> None:
        with (workspace / "grows").open("wb", buffering=0) as file:
            while not stop.is_set() and file.tell() < 50_000_000:
                file.write(b"%015d\n" % (file.tell() // 16))

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        wait_until((workspace / "grows").exists)
        contents = [get(node, "grows").content for _ in range(10)]
    finally:
        stop.set()
        thread.join()
    whole = (workspace / "grows").read_bytes()
    assert all(whole.startswith(content) for content in contents)
    assert sorted(contents, key=len) == contents
    assert contents[-1]


def test_a_full_disk_is_an_error_of_its_own(node: NodeUnderTest, workspace: Path) -> None:
    assert code(put(node, "/dev/full/x", b"x")) == "not_a_directory"
    (workspace / "full").mkdir()
    if os.system(f"mount -t tmpfs -o size=64k tmpfs '{workspace}/full' 2>/dev/null") != 0:
        pytest.skip("needs root to mount a small file system")
    try:
        assert code(put(node, "full/large", os.urandom(5_000_000))) == "disk_full"
        assert list((workspace / "full").iterdir()) == []
    finally:
        os.system(f"umount '{workspace}/full'")


@pytest.mark.parametrize("path", ["", "a\0b", "x" * (limits.MAX_PATH_BYTES + 1)])
def test_impossible_paths_are_refused(node: NodeUnderTest, box: str, path: str) -> None:
    for answer in (get(node, path), put(node, path, b"x")):
        assert code(answer) == "invalid_request"
        assert answer.json()["fields"][0]["field"] == "path"


def test_a_name_that_is_too_long_for_the_disk_is_refused(node: NodeUnderTest, workspace: Path) -> None:
    assert code(put(node, "x" * 256, b"x")) == "invalid_request"


def test_a_body_without_a_length_is_refused(node: NodeUnderTest, box: str) -> None:
    answer = put(node, "chunked", iter([b"a", b"b"]))
    assert code(answer) == "invalid_request"
    assert answer.json()["fields"][0]["field"] == "Content-Length"


def test_an_upload_whose_client_leaves_changes_nothing(node: NodeUnderTest, workspace: Path) -> None:
    put(node, "kept", b"old")
    host, port = node.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"PUT /v1/sandboxes/box/files?path=kept HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CONTROL_TOKEN}\r\n"
        client.sendall(f"{head}Content-Length: 10000000\r\n\r\n".encode() + b"x" * 3_000_000)
        wait_until(lambda: any(workspace.glob(".upload-*")))
    wait_until(lambda: not any(workspace.glob(".upload-*")))
    assert (workspace / "kept").read_bytes() == b"old"


def test_a_download_whose_client_leaves_ends_its_process(node: NodeUnderTest, workspace: Path) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(2_000_000_000)
    with node.call("GET", "/v1/sandboxes/box/files", params={"path": "huge"}, stream=True) as answer:
        assert len(answer.raw.read(1000)) == 1000
    wait_until(lambda: len(node.runtime._pids("box")) <= 2)  # the first process and its shell
    (workspace / "huge").unlink()


def test_a_file_that_shrinks_while_it_is_read_breaks_the_connection(node: NodeUnderTest, workspace: Path) -> None:
    with (workspace / "shrinks").open("wb") as file:
        file.truncate(500_000_000)
    with (
        node.call("GET", "/v1/sandboxes/box/files", params={"path": "shrinks"}, stream=True) as answer,
        pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)),
    ):
        for number, _ in enumerate(answer.iter_content(1_000_000)):
            if number == 0:
                os.truncate(workspace / "shrinks", 1000)
    (workspace / "shrinks").unlink()


def test_an_upload_whose_sandbox_dies_is_an_error_of_files(node: NodeUnderTest, box: str) -> None:
    workspace = node.node._settings.root / "fake" / box / "workspace"

    class Body:
        def __len__(self) -> int:
            return 4 * limits.MIB

        def __iter__(self) -> Iterator[bytes]:
            yield bytes(2 * limits.MIB)
            wait_until(lambda: any(workspace.glob(".upload-*")))
            node.runtime.die(box, DeathReason.OOM, "too much")
            yield bytes(2 * limits.MIB)

    answer = put(node, "big", Body())
    assert (answer.status_code, code(answer), answer.json()["retryable"]) == (503, "transfer_interrupted", True)
