"""The scripts that move files, and what their endings mean."""

import subprocess

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.files import scripts


@pytest.mark.parametrize("script", [scripts.UPLOAD, scripts.DOWNLOAD])
def test_the_scripts_are_what_a_shell_can_read(script: str) -> None:
    subprocess.run(["/bin/busybox", "sh", "-n", "-c", script], check=True, timeout=10)


@pytest.mark.parametrize(
    ("code", "stderr", "expected"),
    [
        (scripts.EXIT_DIRECTORY, b"", ErrorCode.IS_DIRECTORY),
        (1, b"cat: write error: No space left on device", ErrorCode.DISK_FULL),
        (1, b"dd: x: Input/output error", ErrorCode.DISK_FULL),
        (1, b"sh: can't create x: Permission denied", ErrorCode.FILE_PERMISSION),
        (1, b"mkdir: x: Not a directory", ErrorCode.NOT_A_DIRECTORY),
        (2, b"sh: line 16: can't fork: Resource temporarily unavailable", ErrorCode.START_ERROR),
        (2, b"sh: line 16: can't fork: Cannot allocate memory", ErrorCode.START_ERROR),
        (1, b"mv: can't rename '/etc/x': Device or resource busy", ErrorCode.UNSUPPORTED),
        (1, b"something new", ErrorCode.INTERNAL),
        (137, b"", ErrorCode.TRANSFER_INTERRUPTED),
    ],
)
def test_a_script_that_failed_is_explained(code: int, stderr: bytes, expected: ErrorCode) -> None:
    assert scripts.explain(code, stderr)[0] is expected


@pytest.mark.parametrize(("path", "argument"), [("/a", "/a"), ("a", "./a"), ("-rf", "./-rf"), ("../a", "./../a")])
def test_no_path_looks_like_an_option(path: str, argument: str) -> None:
    assert scripts.argument(path) == argument
