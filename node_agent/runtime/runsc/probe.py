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
from node_agent.host import accounts, programs
from node_agent.host.process import CommandError, readable
from node_agent.host.programs import StaticPrograms
from node_agent.runtime.base import RuntimeFacts, Stream
from node_agent.runtime.runsc import oci_bundle, start
from node_agent.runtime.runsc.control import ControlError, ControlLostError, Launch
from node_agent.runtime.runsc.paths import Layout, Places
from node_agent.runtime.runsc.pause import Engine
from node_agent.runtime.runsc.process import Pipes
from node_agent.runtime.runsc.process_handles import SocketHandle
from node_agent.runtime.runsc.runsc_cli import Guard, Runsc

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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The probe's findings."""

    engine: Engine
    facts: RuntimeFacts


def probe(layout: Layout) -> Outcome:
    """Starts a throwaway sandbox and tries everything that the runtime builds on.

    Raises:
        RuntimeFailure: ``UNSUPPORTED``; the sentence names what is missing and the cure.
    """
    runsc = Runsc(layout.run)
    try:
        version = runsc.version()
        provided = programs.provide(layout.tools)
    except (CommandError, OSError) as error:
        raise RuntimeFailure(
            ErrorCode.UNSUPPORTED, f"the runsc runtime cannot run here: {error}; install gVisor and busybox-static"
        ) from error
    places = layout.places(f"probe-{uuid.uuid4().hex[:8]}")
    try:
        return _examine(runsc, version, places, provided)
    except OSError as error:
        raise RuntimeFailure(ErrorCode.UNSUPPORTED, f"the probe of runsc failed: {error}") from error
    finally:
        start.kill(places)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(places.directory)


def _examine(runsc: Runsc, version: str, places: Places, provided: StaticPrograms) -> Outcome:
    _prepare(places, provided.path)
    runsc, notes = _start(runsc, places)
    if not provided.init:
        notes.append(_NO_INIT)
    socket, checkpoint = True, True
    try:
        _test_socket(places)
    except (ControlError, ControlLostError, RuntimeFailure, OSError, KeyError, TypeError) as error:
        # Whatever a new release changed, the command line is there to take its place.
        socket = checkpoint = False
        notes.append(f"gVisor's control socket failed its test ({error}); execs use the slower command line")
    if not places.cgroup.thaw():
        notes.append(_NO_FREEZER)
    if checkpoint:
        try:
            _test_checkpoint(runsc, places)
        except (CommandError, RuntimeFailure) as error:
            checkpoint = False
            notes.append(f"checkpoint and restore failed their test: {error}")
    facts = RuntimeFacts("runsc", version, ("gvisor",), True, checkpoint, False, tuple(notes))
    return Outcome(Engine(runsc, socket), facts)


def _prepare(places: Places, tools: Path) -> None:
    """A bundle whose root file system is empty but for what gVisor mounts into it."""
    for directory in (places.rootfs, places.workspace, places.log(Stream.STDOUT).parent):
        directory.mkdir(parents=True)
    spec = SandboxSpec(id=places.sandbox_id, image="probe", cpus=1, memory_mb=256, network="bridge")
    process = oci_bundle.FirstProcess((programs.BUSYBOX_INSIDE, "sleep", "1000"), {}, "/", accounts.Account(1000, 1000))
    host = oci_bundle.Host(places.rootfs, places.workspace, tools, False, places.cgroup.path, None)
    start.write_bundle(places, oci_bundle.config(spec, process, host))


def _start(runsc: Runsc, places: Places) -> tuple[Runsc, list[str]]:
    """Starts with a network as a sandbox would; with the sysctl hidden only where it fails without."""
    try:
        _launch(runsc, places)
    except RuntimeFailure:
        start.kill(places)
        runsc = dataclasses.replace(runsc, hide_sysctl=True)
    else:
        return runsc, []
    try:
        _launch(runsc, places)
    except RuntimeFailure as failure:
        raise RuntimeFailure(
            ErrorCode.UNSUPPORTED, f"gVisor cannot start a sandbox here: {failure.message}"
        ) from failure
    return runsc, [_HIDES]


def _launch(runsc: Runsc, places: Places, image: Path | None = None) -> None:
    """Starts the throwaway sandbox; nobody waits for its first process.

    Raises:
        RuntimeFailure: it did not start.
    """
    started = start.start(runsc, places, network=True, guard=Guard(places.cgroup.kill), image=image)
    if started.pending is not None:
        started.pending.close()


def _test_socket(places: Places) -> None:
    """Uses every call that the runtime uses, and checks the answers.

    Raises:
        ControlError, ControlLostError, RuntimeFailure, KeyError, TypeError: one of them does not do what it should.
    """
    control = places.control
    control.pause()
    places.cgroup.freeze()
    places.cgroup.thaw()
    control.resume()
    if control.count() < 1 or not any(process.pid == 1 for process in control.processes()):
        raise ControlError("the list of processes lacks the first one")
    if _exit_code(places, f"exit {_EXIT_CODE}") != _EXIT_CODE:
        raise ControlError("an exec's exit code is not what the process ended with")
    with contextlib.closing(control.wait_first()):
        pass


def _exit_code(places: Places, script: str) -> int | None:
    launch = Launch((programs.BUSYBOX_INSIDE, "sh", "-c", script), ("PATH=/",), "/", 1000, 1000, (), 0, 0)
    with contextlib.closing(Pipes(stdin=False)) as pipes:
        try:
            handle = SocketHandle(places.sandbox_id, places.control, launch, pipes)
        finally:
            pipes.close_guest()
        with contextlib.closing(handle):
            readable(handle, _SELF_TEST_TIMEOUT)
            ended = handle.poll()
    return ended.code if ended else None


def _test_checkpoint(runsc: Runsc, places: Places) -> None:
    """Writes the throwaway sandbox to disk and brings it back.

    Raises:
        CommandError, RuntimeFailure: it did not work.
    """
    places.checkpoint.mkdir()
    runsc.checkpoint(places.sandbox_id, places.checkpoint, True, _SELF_TEST_TIMEOUT)
    start.kill(places)
    _launch(runsc, places, places.checkpoint)
    if not any(process.pid == 1 for process in places.control.processes()):
        raise RuntimeFailure(ErrorCode.INTERNAL, "the restored sandbox has no first process")
