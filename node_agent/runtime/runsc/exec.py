"""Starting a process in a running sandbox: who it is, what it sees, and why it did not start."""

import contextlib
import posixpath
import threading
import uuid
from dataclasses import replace
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import AT_PROCESS_BOUND, RuntimeFailure, StartFault
from node_agent.host import accounts
from node_agent.host.accounts import Account
from node_agent.host.process import CommandError
from node_agent.host.programs import BUSYBOX_INSIDE
from node_agent.runtime.base import ExecCommand, ExecProcess
from node_agent.runtime.record import RunscRecord
from node_agent.runtime.runsc import oci_bundle
from node_agent.runtime.runsc.control import ControlError, ControlLostError, Launch
from node_agent.runtime.runsc.oci_bundle import GuestFiles
from node_agent.runtime.runsc.paths import SandboxPaths
from node_agent.runtime.runsc.process import Awake, CommandHandle, PipedProcess, Pipes, SocketHandle
from node_agent.runtime.runsc.runsc_cli import Runsc

LOOK_WAIT: Final = 10.0  # seconds

# gVisor's control socket reports an errno as its text only.
_NO_ENTRY: Final = "no such file or directory"
_EXPLANATIONS: Final = (
    ("try again", AT_PROCESS_BOUND),
    ("argument list too long", "command and env are longer than the sandbox's kernel takes"),
)


def start_exec(
    runsc: Runsc, paths: SandboxPaths, record: RunscRecord, command: ExecCommand, awake: Awake
) -> ExecProcess:
    """Start a process in a running sandbox.

    Args:
        runsc: the engine.
        paths: of the sandbox.
        record: of the sandbox.
        command: what to start.
        awake: surrounds what is asked of the sandbox once the process runs.

    Raises:
        RuntimeFailure: ``SANDBOX_NOT_RUNNING``, ``START_ERROR``.
    """
    launch = plan(paths, record, command)
    if command.working_dir is not None:
        _check_directory(runsc, paths, record, launch, command)
    return _started(runsc, paths, launch, command, awake)


def _started(runsc: Runsc, paths: SandboxPaths, launch: Launch, command: ExecCommand, awake: Awake) -> PipedProcess:
    pipes = Pipes(command.stdin)
    try:
        handle = (
            SocketHandle(paths.sandbox_id, paths.control, launch, pipes, awake)
            if runsc.socket
            else CommandHandle(paths.sandbox_id, runsc, launch, pipes, _pid_file(paths), awake)
        )
    except ControlError as error:
        pipes.close()
        raise _not_started(command, str(error)) from error
    except (ControlLostError, CommandError, OSError) as error:
        pipes.close()
        raise RuntimeFailure(
            ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {paths.sandbox_id} is not running any more: {error}"
        ) from error
    finally:
        pipes.close_guest()
    return PipedProcess(handle, pipes)


def _check_directory(
    runsc: Runsc, paths: SandboxPaths, record: RunscRecord, launch: Launch, command: ExecCommand
) -> None:
    """Raise unless the working directory is one: gVisor starts a process in whatever has its name.

    The host sees most directories; the sandbox is asked about those that only it sees.
    """
    files = GuestFiles(paths.rootfs, paths.workspace, record.spec.filesystem.workspace_path)
    if files.shows_directory(launch.working_dir):
        return
    look = ExecCommand((BUSYBOX_INSIDE, "test", "-d", launch.working_dir))
    asked = replace(launch, argv=look.argv, working_dir="/")
    with contextlib.closing(_started(runsc, paths, asked, look, contextlib.nullcontext)) as process:
        # Processes of the same user can stop it; then closing it ends the wait.
        timer = threading.Timer(LOOK_WAIT, process.close)
        timer.start()
        try:
            if process.wait().code == 0:
                return
        finally:
            timer.cancel()
    raise RuntimeFailure(
        ErrorCode.START_ERROR,
        f"{command.argv[0]}: its working directory {launch.working_dir} is not a directory, or its user may not enter"
        " it",
        start_fault=StartFault.NOT_EXECUTABLE,
    )


def plan(paths: SandboxPaths, record: RunscRecord, command: ExecCommand) -> Launch:
    """Decide who the process is and what it sees, in gVisor's terms."""
    spec = record.spec
    account = _account(paths, record, command)
    env = oci_bundle.environment(spec, record.part.image_env, account) | dict(command.env)
    allowed = oci_bundle.capability_bits(oci_bundle.capabilities(spec.security))
    return Launch(
        argv=command.argv,
        env=tuple(f"{key}={value}" for key, value in env.items()),
        working_dir=posixpath.normpath(posixpath.join(record.working_dir, command.working_dir or "")),
        uid=account.uid,
        gid=account.gid,
        groups=account.groups,
        capabilities=allowed if account.uid == 0 else 0,
        bounding=allowed,
    )


def _account(paths: SandboxPaths, record: RunscRecord, command: ExecCommand) -> Account:
    if command.user is None:
        return record.part.account
    try:
        return accounts.look_up(paths.rootfs, command.user)
    except (accounts.UnknownAccountError, OSError) as error:
        raise RuntimeFailure(ErrorCode.START_ERROR, str(error), start_fault=StartFault.NOT_EXECUTABLE) from error


def _pid_file(paths: SandboxPaths) -> str:
    return str(paths.directory / f"exec-{uuid.uuid4().hex}.pid")


def _not_started(command: ExecCommand, words: str) -> RuntimeFailure:
    cause = next((text for errno, text in _EXPLANATIONS if errno in words), words)
    fault = StartFault.NOT_FOUND if _NO_ENTRY in words else StartFault.NOT_EXECUTABLE
    message = f"{command.argv[0]} could not be started: {cause}"
    return RuntimeFailure(ErrorCode.START_ERROR, message, start_fault=fault)
