"""A process with a number of the test's choice, as a busy host deals one out again."""

import subprocess
from pathlib import Path
from typing import Final

_LAST: Final = Path("/proc/sys/kernel/ns_last_pid")
_TRIES: Final = 1000  # others start processes meanwhile


def process_with_pid(pid: int) -> "subprocess.Popen[bytes]":
    """Start a process that sleeps and has this pid, which must be free; the caller ends it.

    Raises:
        AssertionError: somebody else has the pid.
    """
    failed: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(_TRIES):
            _LAST.write_text(str(pid - 1))
            process = subprocess.Popen(["sleep", "100000"], start_new_session=True)
            if process.pid == pid:
                return process
            failed.append(process)
    finally:
        for process in failed:
            process.kill()
            process.wait()
    raise AssertionError(f"pid {pid} could not be had in {_TRIES} tries")
