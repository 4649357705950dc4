"""The runsc program: every call of it, each with a timeout."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.host.network import HIDE_SYSCTL
from node_agent.host.process import CommandError, ended_within, run, start
from node_agent.runtime.base import Stream
from node_agent.runtime.locks import StartAttempt
from node_agent.runtime.runsc.paths import SandboxPaths, container_name

START_TIMEOUT: Final = 60.0
CALL_TIMEOUT: Final = 15.0

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
    """runsc with one state directory, and how it has to be used on this host.

    Attributes:
        state: its ``--root``.
        hide_sysctl: whether starts need `HIDE_SYSCTL`.
        socket: whether sandboxes can be asked over their control socket; else the command line takes its place.
    """

    state: Path
    hide_sysctl: bool = False
    socket: bool = False

    def version(self) -> str:
        """Return the release, e.g. ``20240729.0``.

        Raises:
            CommandError: it is not installed or does not run.
        """
        text = run(["runsc", "--version"], timeout=CALL_TIMEOUT).decode(errors="replace")
        match = re.search(r"version\s+(?:release-|0\.0~)?(\S+)", text)
        return match[1] if match else text.strip()

    def start(self, sandbox: SandboxPaths, network: bool, attempt: StartAttempt) -> None:
        """Start the sandbox's bundle; returns once the first process runs.

        Raises:
            CommandError: it did not start; ``output`` is what runsc wrote about it.
            RuntimeFailure: ``CONFLICT`` when a delete cut the attempt short.
        """
        self._launch(["run", "-detach"], sandbox, network, attempt)

    def restore(self, sandbox: SandboxPaths, network: bool, attempt: StartAttempt) -> None:
        """Start the sandbox from its checkpoint, as `start` does from its bundle."""
        self._launch(["restore", "-detach", f"--image-path={sandbox.checkpoint}"], sandbox, network, attempt)

    def checkpoint(self, sandbox_id: str, image: Path, network: bool, timeout: float) -> None:
        """Write the sandbox to the directory ``image`` and end it, within ``timeout`` seconds.

        Raises:
            CommandError: it could not be written.
        """
        run(
            [*self._command(network), "checkpoint", f"--image-path={image}", container_name(sandbox_id)],
            timeout=timeout,
        )

    def pause(self, sandbox_id: str) -> None:
        """Freeze the sandbox's processes.

        Raises:
            CommandError: runsc refused.
        """
        run([*self._command(network=False), "pause", container_name(sandbox_id)], timeout=CALL_TIMEOUT)

    def resume(self, sandbox_id: str) -> None:
        """Take `pause` back.

        Raises:
            CommandError: runsc refused.
        """
        run([*self._command(network=False), "resume", container_name(sandbox_id)], timeout=CALL_TIMEOUT)

    def exec_command(self, sandbox_id: str, options: Sequence[str], argv: Sequence[str]) -> list[str]:
        """Return the command line of an exec."""
        return [*self._command(network=False), "exec", *options, container_name(sandbox_id), *argv]

    def _command(self, network: bool) -> list[str]:
        return ["runsc", f"--root={self.state}", *_FLAGS, f"--network={'sandbox' if network else 'none'}"]

    def _launch(self, action: Sequence[str], sandbox: SandboxPaths, network: bool, attempt: StartAttempt) -> None:
        hide = HIDE_SYSCTL if network and self.hide_sysctl else ()
        command = [*_DIE_WITH_US, *hide, *self._command(network), f"--log={sandbox.engine_log}"]
        command += [f"--panic-log={sandbox.crash_log}", *action]
        command += [f"--bundle={sandbox.bundle}", f"--pid-file={sandbox.pid_file}", sandbox.container]
        attempt.check()
        self.state.mkdir(mode=0o700, exist_ok=True)
        # The sandbox keeps these descriptors for its whole life: files, never a pipe of ours.
        with sandbox.log(Stream.STDOUT).open("ab") as out, sandbox.log(Stream.STDERR).open("ab") as err:
            process = start(command, stdin=subprocess.DEVNULL, stdout=out.fileno(), stderr=err.fileno())
        try:
            with attempt.interruptible(lambda: _end(process, sandbox)):
                ended_within(process, START_TIMEOUT)
        finally:
            if process.returncode is None:
                _end(process, sandbox)
                process.wait()
        if process.returncode != 0:
            problem = f"{action[0]} failed with exit code {process.returncode}"
            raise CommandError(["runsc"], problem, output=_last_words(sandbox), code=process.returncode)


def _end(process: "subprocess.Popen[bytes]", sandbox: SandboxPaths) -> None:
    """End a start in flight and what it made already."""
    process.kill()
    sandbox.cgroup.kill()


def _last_words(sandbox: SandboxPaths) -> str:
    """Return what runsc itself wrote last about a failed start, without its prefixes."""
    for path in (sandbox.log(Stream.STDERR), sandbox.engine_log):
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
