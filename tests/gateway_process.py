"""A gateway as a process of its own, started as `sandboxes gateway run`, on a free port of the loopback."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LISTENS = re.compile(r"the gateway listens on (http://\S+)")


def sandboxes(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run one command line."""
    return subprocess.run(
        [sys.executable, "-m", "sandboxes", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def new_token(state_dir: Path, scope: str) -> str:
    """Create a token in the database, and return its secret."""
    made = sandboxes("token", "create", "--name", f"test-{scope}", "--scope", scope, "--state-dir", str(state_dir))
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@dataclass
class GatewayProcess:
    """A running gateway; ``log`` holds its log so far."""

    url: str
    state_dir: Path
    process: "subprocess.Popen[str]"
    log: list[str]

    def peak_memory(self) -> int:
        """Return its peak memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(20)


@contextlib.contextmanager
def gateway_process(
    state_dir: Path, port: int = 0, environ: Mapping[str, str] | None = None
) -> Iterator[GatewayProcess]:
    """Run a gateway until the block ends; it needs a token in the database.

    Args:
        state_dir: its state directory.
        port: 0 takes a free one.
        environ: added to this process's environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "sandboxes", "gateway", "run", "--port", str(port), "--state-dir", str(state_dir)],
        cwd=ROOT,
        env={**os.environ, "SANDBOXES_GATEWAY_RESERVE_MB": "1", **(environ or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    log: list[str] = []
    listens = threading.Event()
    assert process.stderr is not None
    stderr = process.stderr

    def read() -> None:
        for line in stderr:
            log.append(line)
            if _LISTENS.search(line):
                listens.set()
        listens.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert listens.wait(30)
        found = [_LISTENS.search(line) for line in log]
        urls = [match[1] for match in found if match]
        assert urls, "".join(log)
        yield GatewayProcess(urls[0], state_dir, process, log)
    finally:
        process.kill()
        process.wait(20)
        reader.join(20)
        stderr.close()
