"""What this host's gVisor can do, found out with a throwaway sandbox."""

import contextlib
import dataclasses
import shutil
import uuid
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from node_agent.errors import RuntimeFailure
from node_agent.host import accounts, cgroup, devices, programs
from node_agent.host.process import CommandError, readable
from node_agent.host.programs import StaticPrograms
from node_agent.runtime.base import RuntimeFacts, Stream
from node_agent.runtime.locks import StartAttempt
from node_agent.runtime.runsc import create, oci_bundle
from node_agent.runtime.runsc.control import ControlError, ControlLostError, Launch
from node_agent.runtime.runsc.paths import RunscPaths, SandboxPaths
from node_agent.runtime.runsc.process import Pipes, SocketHandle
from node_agent.runtime.runsc.runsc_cli import Runsc

_SELF_TEST_TIMEOUT: Final = 10.0
_EXIT_CODE: Final = 7
_HIDES: Final = (
    "this kernel shows net.core.rmem_default in every network namespace, which this gVisor takes for the host's;"
    " runsc starts in a mount namespace with an empty /proc/sys/net"
)
_NO_INIT: Final = (
    "no static tini was found, so orphans inside sandboxes stay as zombies; apt-get install tini (or docker.io)"
)

_NO_FREEZER: Final = (
    "this host has no cgroup freezer, so a paused sandbox goes on taking 2 to 4 % of a core; mount it (cgroup v1) or"
    " boot with the unified hierarchy"
)
_NO_DEVICES: Final = (
    "this host has no devices controller (cgroup v1) and takes no device programs (v2), so only mounts without devices"
    " keep sandboxes from the host's devices; mount the controller, or run the agent with CAP_BPF"
)


@dataclasses.dataclass(frozen=True)
class ProbedRunsc:
    """What the probe found, and the engine as it has to be used here."""

    runsc: Runsc
    facts: RuntimeFacts


def probe(node: RunscPaths) -> ProbedRunsc:
    """Start a throwaway sandbox and try everything that the runtime builds on.

    Raises:
        RuntimeFailure: ``UNSUPPORTED``; the sentence names what is missing and the cure.
    """
    runsc = Runsc(node.run)
    try:
        version = runsc.version()
        provided = programs.provide(node.tools)
    except (CommandError, OSError) as error:
        raise RuntimeFailure(
            ErrorCode.UNSUPPORTED, f"the runsc runtime cannot run here: {error}; install gVisor and busybox-static"
        ) from error
    paths = node.of(f"probe-{uuid.uuid4().hex[:8]}")
    try:
        return _examine(runsc, version, paths, provided)
    except OSError as error:
        raise RuntimeFailure(ErrorCode.UNSUPPORTED, f"the probe of runsc failed: {error}") from error
    finally:
        paths.kill()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(paths.directory)


def _examine(runsc: Runsc, version: str, paths: SandboxPaths, provided: StaticPrograms) -> ProbedRunsc:
    _prepare(paths, provided.path)
    confined = cgroup.confine_devices(paths.node.tag, devices.ENGINE_RULES)
    runsc, notes = _start(runsc, paths)
    if not confined:
        notes.append(_NO_DEVICES)
    if not provided.init:
        notes.append(_NO_INIT)
    socket, checkpoint = True, True
    try:
        _test_socket(paths)
    except (ControlError, ControlLostError, RuntimeFailure, OSError, KeyError, TypeError) as error:
        # Whatever a new release changed, the command line is there to take its place.
        socket = checkpoint = False
        notes.append(f"gVisor's control socket failed its test ({error}); execs use the slower command line")
    if not paths.cgroup.thaw():
        notes.append(_NO_FREEZER)
    if checkpoint:
        try:
            _test_checkpoint(runsc, paths)
        except (CommandError, RuntimeFailure) as error:
            checkpoint = False
            notes.append(f"checkpoint and restore failed their test: {error}")
    facts = RuntimeFacts("runsc", version, ("gvisor",), True, checkpoint, False, tuple(notes))
    return ProbedRunsc(dataclasses.replace(runsc, socket=socket), facts)


def _prepare(paths: SandboxPaths, tools: Path) -> None:
    """Make a bundle whose root file system is empty but for what gVisor mounts into it."""
    for directory in (paths.rootfs, paths.workspace, paths.log(Stream.STDOUT).parent):
        directory.mkdir(parents=True)
    spec = SandboxSpec(id=paths.sandbox_id, image="probe", cpus=1, memory_mb=256, network="bridge")
    process = oci_bundle.FirstProcess((programs.BUSYBOX_INSIDE, "sleep", "1000"), {}, "/", accounts.Account(1000, 1000))
    host = oci_bundle.BundleHost(paths.rootfs, paths.workspace, tools, False, paths.cgroup.path, None)
    create.write_config(paths, oci_bundle.config(spec, process, host))


def _start(runsc: Runsc, paths: SandboxPaths) -> tuple[Runsc, list[str]]:
    """Start with a network as a sandbox would; with the sysctl hidden only where it fails without."""
    try:
        _launch(runsc, paths)
    except RuntimeFailure:
        paths.kill()
        runsc = dataclasses.replace(runsc, hide_sysctl=True)
    else:
        return runsc, []
    try:
        _launch(runsc, paths)
    except RuntimeFailure as failure:
        raise RuntimeFailure(
            ErrorCode.UNSUPPORTED, f"gVisor cannot start a sandbox here: {failure.message}"
        ) from failure
    return runsc, [_HIDES]


def _launch(runsc: Runsc, paths: SandboxPaths, *, restore: bool = False) -> None:
    """Start the throwaway sandbox; nobody waits for its first process.

    Raises:
        RuntimeFailure: it did not start.
    """
    started = create.start(runsc, paths, network=True, attempt=StartAttempt(paths.sandbox_id), restore=restore)
    if started.pending is not None:
        started.pending.close()


def _test_socket(paths: SandboxPaths) -> None:
    """Use every call that the runtime uses, and check the answers.

    Raises:
        ControlError, ControlLostError, RuntimeFailure, KeyError, TypeError: one of them does not do what it should.
    """
    control = paths.control
    control.pause()
    paths.cgroup.freeze()
    paths.cgroup.thaw()
    control.resume()
    if control.count() < 1 or not any(process.pid == 1 for process in control.processes()):
        raise ControlError("the list of processes lacks the first one")
    if _exit_code(paths, f"exit {_EXIT_CODE}") != _EXIT_CODE:
        raise ControlError("an exec's exit code is not what the process ended with")
    with contextlib.closing(control.wait_first()):
        pass


def _exit_code(paths: SandboxPaths, script: str) -> int | None:
    launch = Launch((programs.BUSYBOX_INSIDE, "sh", "-c", script), ("PATH=/",), "/", 1000, 1000, (), 0, 0)
    with contextlib.closing(Pipes(stdin=False)) as pipes:
        try:
            handle = SocketHandle(paths.sandbox_id, paths.control, launch, pipes)
        finally:
            pipes.close_guest()
        with contextlib.closing(handle):
            readable(handle, _SELF_TEST_TIMEOUT)
            ended = handle.poll()
    return ended.code if ended else None


def _test_checkpoint(runsc: Runsc, paths: SandboxPaths) -> None:
    """Write the throwaway sandbox to disk and bring it back.

    Raises:
        CommandError, RuntimeFailure: it did not work.
    """
    paths.checkpoint.mkdir()
    runsc.checkpoint(paths.sandbox_id, paths.checkpoint, True, _SELF_TEST_TIMEOUT)
    paths.kill()
    _launch(runsc, paths, restore=True)
    if not any(process.pid == 1 for process in paths.control.processes()):
        raise RuntimeFailure(ErrorCode.INTERNAL, "the restored sandbox has no first process")
