"""The runsc program: every call of it, each with a timeout."""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from node_agent.host.process import CommandError, readable, run

START_TIMEOUT: Final = 60.0
CALL_TIMEOUT: Final = 15.0

# gVisor up to 2024 takes a visible rmem_default as the sign of the host's own network namespace and refuses to start
# its network.  Since about Linux 6.15 it is visible in every namespace; an empty /proc/sys/net in a mount namespace of
# its own hides it.  Slave propagation lets later mounts and unmounts of the host through.
_HIDE_SYSCTL: Final = ("unshare", "-m", "--propagation", "slave", "sh", "-c")
_HIDE_SCRIPT: Final = 'mount -t tmpfs tmpfs /proc/sys/net; exec "$@"'

# A start must not go on when the agent dies: its successor takes down what it finds, and would miss what comes after.
_DIE_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--")

# Flags that start, restore and checkpoint must agree on.  KVM is never used: a /dev/kvm that does not work hangs it.
_FLAGS: Final = (
    "--platform=systrap",
    "--overlay2=none",  # the writable layer is an overlay of the host on the sandbox's bounded volume
    "--file-access-mounts=exclusive",  # nobody but the sandbox writes its workspace
    "--cpu-num-from-quota",  # so that programs inside see the cores they may use
)


@dataclass(frozen=True)
class Runsc:
    """runsc with one state directory.

    Attributes:
        state: its ``--root``.
        hide_sysctl: whether starts need the mount namespace described above.
    """

    state: Path
    hide_sysctl: bool = False

    def version(self) -> str:
        """The release, e.g. ``20240729.0``.

        Raises:
            CommandError: it is not installed or does not run.
        """
        text = run(["runsc", "--version"], timeout=CALL_TIMEOUT).decode(errors="replace")
        match = re.search(r"version\s+(?:release-|0\.0~)?(\S+)", text)
        return match[1] if match else text.strip()

    def start(self, sandbox_id: str, bundle: Path, stdio: "Stdio", network: bool, guard: "Guard") -> None:
        """``runsc run -detach``: returns once the first process runs.

        Raises:
            CommandError: it did not start; what runsc said is in ``stdio.stderr`` and its log.
        """
        arguments = ["run", "-detach", f"--bundle={bundle}", f"--pid-file={bundle / 'pid'}", sandbox_id]
        self._launch(arguments, stdio, network, guard)

    def restore(
        self, sandbox_id: str, bundle: Path, image: Path, stdio: "Stdio", network: bool, guard: "Guard"
    ) -> None:
        """``runsc restore -detach`` from a checkpoint in ``image``.

        Raises:
            CommandError: it did not start.
        """
        arguments = ["restore", "-detach", f"--bundle={bundle}", f"--image-path={image}"]
        self._launch([*arguments, f"--pid-file={bundle / 'pid'}", sandbox_id], stdio, network, guard)

    def checkpoint(self, sandbox_id: str, image: Path, network: bool, timeout: float) -> None:
        """Writes the sandbox to ``image`` and ends it.

        Raises:
            CommandError: it could not be written.
        """
        run([*self._command(network), "checkpoint", f"--image-path={image}", sandbox_id], timeout=timeout)

    def call(self, action: str, sandbox_id: str) -> None:
        """``pause`` or ``resume`` by the command line.

        Raises:
            CommandError: runsc refused.
        """
        run([*self._command(network=False), action, sandbox_id], timeout=CALL_TIMEOUT)

    def status(self, sandbox_id: str) -> str | None:
        """What ``runsc state`` says; ``None`` when runsc does not know the sandbox.

        Raises:
            CommandError: runsc hangs.
        """
        try:
            answer = json.loads(run([*self._command(network=False), "state", sandbox_id], timeout=CALL_TIMEOUT))
        except CommandError as error:
            if error.code is None:
                raise
            return None
        status: str = answer["status"]
        return status

    def exec_command(self, sandbox_id: str, options: Sequence[str], argv: Sequence[str]) -> list[str]:
        """The command line of an exec."""
        return [*self._command(network=False), "exec", *options, sandbox_id, *argv]

    def _command(self, network: bool) -> list[str]:
        return ["runsc", f"--root={self.state}", *_FLAGS, f"--network={'sandbox' if network else 'none'}"]

    def _launch(self, arguments: Sequence[str], stdio: "Stdio", network: bool, guard: "Guard") -> None:
        command = [*self._command(network), f"--log={stdio.engine_log}", *arguments]
        if network and self.hide_sysctl:
            command = [*_HIDE_SYSCTL, _HIDE_SCRIPT, "sh", *command]
        command = [*_DIE_WITH_US, *command]
        # The sandbox keeps these descriptors for its whole life: files, never a pipe of ours.
        with stdio.stdout.open("ab") as out, stdio.stderr.open("ab") as err:
            code = guard.run(command, out, err, START_TIMEOUT)
        if code != 0:
            said = stdio.said()
            raise CommandError(["runsc"], f"{arguments[0]} failed with exit code {code}", output=said, code=code)


@dataclass(frozen=True)
class Stdio:
    """Files that the first process writes to, and runsc's own log of the start."""

    stdout: Path
    stderr: Path
    engine_log: Path

    def said(self) -> str:
        """runsc's own last words on a failed start, without its prefixes."""
        for path in (self.stderr, self.engine_log):
            lines = [line for line in _tail(path).splitlines() if line.strip()]
            if lines:
                return re.sub(r"^(running container|starting \w+|creating \w+|cannot \w+ \w+): ", "", lines[-1])
        return ""


def _tail(path: Path, limit: int = 4096) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read(limit).decode(errors="replace")
    except FileNotFoundError:
        return ""


class Guard:
    """Runs a start that another thread may cut short.

    Args:
        on_cancel: called when a start is cut short; ends what the start already made.
    """

    def __init__(self, on_cancel: Callable[[], object]) -> None:
        self._on_cancel = on_cancel
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def run(self, command: Sequence[str], stdout: IO[bytes], stderr: IO[bytes], timeout: float) -> int:
        """The command's exit code; negative when it was cut short or took too long."""
        with self._lock:
            if self._cancelled:
                return -signal.SIGKILL
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
                )
            except FileNotFoundError as error:
                raise CommandError(command, "is not installed on this host") from error
        try:
            # Popen.wait with a timeout sleeps between its looks, up to 50 ms; a handle tells at once.
            handle = os.pidfd_open(self._process.pid)
            try:
                ended = readable(handle, timeout)
            finally:
                os.close(handle)
            if not ended:
                self._end()
            return self._process.wait()
        finally:
            with self._lock:
                self._process = None

    def cancel(self) -> None:
        """Ends the start in flight and every later one."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._on_cancel()
