"""Starting a process in a running sandbox: who it is, what it sees, and why it did not start."""

import contextlib
import posixpath
import uuid
from dataclasses import replace
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure, StartFault
from node_agent.host import accounts
from node_agent.host.accounts import Account
from node_agent.host.programs import BUSYBOX_INSIDE
from node_agent.runtime.base import EngineState, ExecCommand, ExecProcess
from node_agent.runtime.runsc import oci_bundle
from node_agent.runtime.runsc.control import ControlError, ControlLostError, Launch
from node_agent.runtime.runsc.inspection import View
from node_agent.runtime.runsc.paths import Places
from node_agent.runtime.runsc.pause import Engine
from node_agent.runtime.runsc.process import PipedProcess, Pipes
from node_agent.runtime.runsc.process_handles import Awake, CommandHandle, SocketHandle
from node_agent.runtime.runsc.record import Record

# gVisor's control socket reports an errno as its text only.
_NO_ENTRY: Final = "no such file or directory"
_EXPLANATIONS: Final = (
    ("try again", "the sandbox is at its bound on processes (security.pids_limit)"),
    ("argument list too long", "command and env are longer than the sandbox's kernel takes"),
)


def start_exec(engine: Engine, places: Places, record: Record, command: ExecCommand, awake: Awake) -> ExecProcess:
    """Starts it.

    Args:
        awake: surrounds what is asked of the sandbox once the process runs.

    Raises:
        RuntimeFailure: ``SANDBOX_NOT_RUNNING``, ``START_ERROR``.
    """
    launch = plan(places, record, command)
    if command.working_dir is not None:
        _refuse_other_than_directory(engine, places, record, launch, command)
    return _started(engine, places, launch, command, awake)


def _started(engine: Engine, places: Places, launch: Launch, command: ExecCommand, awake: Awake) -> PipedProcess:
    pipes = Pipes(command.stdin)
    try:
        handle = (
            SocketHandle(places.sandbox_id, places.control, launch, pipes, awake)
            if engine.socket
            else CommandHandle(places.sandbox_id, engine.runsc, launch, pipes, _pid_file(places), awake)
        )
    except ControlError as error:
        pipes.close()
        raise _not_started(command, str(error)) from error
    except (ControlLostError, OSError) as error:
        pipes.close()
        raise RuntimeFailure(
            ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {places.sandbox_id} is not running any more: {error}"
        ) from error
    finally:
        pipes.close_guest()
    return PipedProcess(handle, pipes)


def _refuse_other_than_directory(
    engine: Engine, places: Places, record: Record, launch: Launch, command: ExecCommand
) -> None:
    """gVisor starts a process in whatever has the name of its working directory.

    The host sees most directories; of those that only the sandbox sees, it is asked.
    """
    view = View(places.rootfs, places.workspace, record.spec.filesystem.workspace_path)
    if view.shows_directory(launch.working_dir):
        return
    look = ExecCommand((BUSYBOX_INSIDE, "test", "-d", launch.working_dir))
    asked = replace(launch, argv=look.argv, working_dir="/")
    with contextlib.closing(_started(engine, places, asked, look, contextlib.nullcontext)) as process:
        if process.wait().code == 0:
            return
    raise RuntimeFailure(
        ErrorCode.START_ERROR,
        f"{command.argv[0]}: its working directory {launch.working_dir} is not a directory, or its user may not enter"
        " it",
        start_fault=StartFault.NOT_EXECUTABLE,
    )


def plan(places: Places, record: Record, command: ExecCommand) -> Launch:
    """What to tell the engine."""
    spec = record.spec
    account = _account(places, record, command)
    env = oci_bundle.environment(spec, record.image_env, account) | dict(command.env)
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


def _account(places: Places, record: Record, command: ExecCommand) -> Account:
    if command.user is None:
        return record.account
    try:
        return accounts.look_up(places.rootfs, command.user)
    except (accounts.UnknownAccountError, OSError) as error:
        raise RuntimeFailure(ErrorCode.START_ERROR, str(error), start_fault=StartFault.NOT_EXECUTABLE) from error


def _pid_file(places: Places) -> str:
    return str(places.directory / f"exec-{uuid.uuid4().hex}.pid")


def _not_started(command: ExecCommand, said: str) -> RuntimeFailure:
    cause = next((text for errno, text in _EXPLANATIONS if errno in said), said)
    fault = StartFault.NOT_FOUND if _NO_ENTRY in said else StartFault.NOT_EXECUTABLE
    message = f"{command.argv[0]} could not be started: {cause}"
    return RuntimeFailure(ErrorCode.START_ERROR, message, start_fault=fault)


def not_running(sandbox_id: str, record: Record | None) -> RuntimeFailure:
    """The refusal of work that needs running processes."""
    if record is None:
        return RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id} is not on this node")
    hint = "; resume it first" if record.state is EngineState.PAUSED else ""
    detail = f": {record.death.detail}" if record.death else ""
    return RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id} is {record.state.value}{detail}{hint}")
