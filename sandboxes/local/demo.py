"""``sandboxes demo``: the README's example in a real gVisor sandbox, and proof that nothing stays behind."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import typer

from sandboxes.errors import CommandFailed
from sandboxes.local import itself, residue
from sandboxes.local.stack import HOST, Access, Stack
from sandboxes.local.state_dir import Layout, held
from sandboxes.local.up import say
from ucloud_sandboxes_sdk import Image, ImageError, SandboxApiError, SandboxClient, SandboxHandle, SandboxSpec

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "hello.py"
WANTED_IMAGE: Final = "python:3.12-slim"
CACHE: Final = Path("/var/cache/sandbox-fleet")
EXAMPLE_SECONDS: Final = 300.0
IMAGE_SECONDS: Final = 900.0  # the packages come from a mirror
TIMED_EXECS: Final = 5
PROOF: Final = """\
import ctypes, platform
print(platform.release())
log = ctypes.create_string_buffer(65536)
size = ctypes.CDLL(None).klogctl(3, log, len(log))
lines = log.raw[: max(0, size)].decode().splitlines()
print(next((line.partition("] ")[2] for line in lines if "gVisor" in line), "it names no gVisor"))
"""
"""Which kernel a process sees, and what that kernel's log says of itself (``dmesg`` reads the same)."""

app = typer.Typer()


@dataclass(frozen=True)
class Proof:
    """What a sandbox says of itself, and how long things took, in seconds."""

    isolation: str
    kernel: str
    log_line: str
    create: float
    execs: tuple[float, ...]
    delete: float


def free_port() -> int:
    """A port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def spec(image: str) -> SandboxSpec:
    """The example's sandbox, under an id of the demo's own."""
    return SandboxSpec(
        id=f"demo-{uuid4().hex}",
        image=Image.from_registry(image),
        command=["sleep", "300"],
        cpus=1,
        memory_mb=2048,
        disk_mb=10240,
        ttl_seconds=600,
    )


def first_sandbox(client: SandboxClient, docker_socket: Path) -> tuple[str, SandboxHandle, float]:
    """A sandbox of the example's image, or of one made here where that cannot be pulled.

    Returns:
        The image's own reference, the sandbox, and the seconds that its create took.
    """
    say(f"creating a sandbox of {WANTED_IMAGE}")
    try:
        return WANTED_IMAGE, *_timed_create(client, WANTED_IMAGE)
    except ImageError as error:
        say(f"{WANTED_IMAGE} cannot be had here: {error}")
    kept = any(CACHE.glob("debian-python-*.tar"))
    say(
        "taking the image that an earlier demo made from Debian's packages instead"
        if kept
        else "making an image from Debian's packages instead (kept for the next time)"
    )
    words = ("node", "demo-image", "--docker", f"unix://{docker_socket}", "--cache", str(CACHE))
    image = itself.call(*words, within=IMAGE_SECONDS).strip()
    say(f"the example runs with {image} in place of {WANTED_IMAGE}")
    return image, *_timed_create(client, image)


def _timed_create(client: SandboxClient, image: str) -> tuple[SandboxHandle, float]:
    started = time.monotonic()
    return client.create_sandbox(spec(image)), time.monotonic() - started


def prove(client: SandboxClient, sandbox: SandboxHandle, create: float) -> Proof:
    """Asks the sandbox which kernel it sees, and takes times."""
    told = sandbox.exec(["python3", "-c", PROOF], timeout_seconds=60)
    if not told.success:
        raise CommandFailed(f"the sandbox does not say which kernel it sees: {told.stderr.strip()}")
    kernel, log_line = told.stdout.splitlines()
    execs: list[float] = []
    for _ in range(TIMED_EXECS):
        started = time.monotonic()
        sandbox.exec(["true"], timeout_seconds=60)
        execs.append(time.monotonic() - started)
    isolation = str(sandbox.refresh().get("isolation"))
    started = time.monotonic()
    sandbox.delete()
    return Proof(isolation, kernel, log_line, create, tuple(execs), time.monotonic() - started)


def run_example(access: Access, image: str) -> str:
    """Runs the README's example as a program of its own, against this service; what it printed.

    Raises:
        CommandFailed: it is not in this installation, or it failed.
    """
    try:
        source = EXAMPLE.read_text()
    except FileNotFoundError as error:
        raise CommandFailed(f"the example {EXAMPLE} is missing; run the demo in a checkout of the project") from error
    done = subprocess.run(
        [sys.executable, "-"],
        input=source.replace(WANTED_IMAGE, image),
        env={
            **os.environ,
            "UCLOUD_SANDBOX_URL": access.url,
            "UCLOUD_SANDBOX_API_TOKEN": access.client_token.read_text().strip(),
        },
        capture_output=True,
        text=True,
        timeout=EXAMPLE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise CommandFailed(f"the example failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def show(proof: Proof, node_id: str) -> None:
    """Prints isolation and times."""
    execs = sorted(proof.execs)
    typer.echo(
        f"isolation           {proof.isolation}, on node {node_id}\n"
        f"kernel inside       {proof.kernel}; its log: {proof.log_line}\n"
        f"kernel of the host  {os.uname().release}\n"
        f"times               create {proof.create * 1000:.0f} ms, exec {execs[len(execs) // 2] * 1000:.0f} ms"
        f" (median of {len(execs)}), delete {proof.delete * 1000:.0f} ms"
    )


def report_leftovers(marks: residue.Marks) -> None:
    """Looks at the machine itself for what the service may have left.

    Raises:
        CommandFailed: something is left; the sentence lists it.
    """
    found = residue.settled(marks)
    left = [f"{kind} {name}" for kind, names in found.items() for name in names]
    if left:
        raise CommandFailed(f"left behind: {', '.join(left)}")
    typer.echo(f"left behind         nothing (looked for: {', '.join(found)})")


def hello(stack: Stack) -> residue.Marks:
    """Starts the service, shows what there is to show, and tells what its things are marked with."""
    node = stack.start()
    marks = stack.marks()
    with SandboxClient(base_url=stack.access.url, api_token=stack.access.client_token.read_text().strip()) as client:
        image, sandbox, create = first_sandbox(client, stack.docker_socket)
        proof = prove(client, sandbox, create)
    say(f"running {EXAMPLE.name} from the README")
    typer.echo(run_example(stack.access, image).rstrip())
    show(proof, node.id)
    return marks


@app.command()
def demo() -> None:
    """Start the service, say hello from a sandbox, and take everything down again.

    It uses a state directory and a port of its own and touches no service that is already running.
    """
    started = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="sbd-", dir="/var/tmp"))  # /tmp may be in memory
    layout = Layout(root)
    marks: residue.Marks = (str(root),)
    try:
        layout.make()
        with held(layout.lock):
            stack = Stack(layout, free_port(), say)
            try:
                marks = hello(stack)
            except SandboxApiError as error:
                raise CommandFailed(f"the service refused: {error}") from error
            finally:
                say("taking everything down")
                problems = stack.end()
        if problems:
            raise CommandFailed(f"not everything could be ended: {'; '.join(problems)}; see {root}")
    except CommandFailed as failure:
        if layout.logs.is_dir():
            raise CommandFailed(
                f"{failure.message} (logs are in {layout.logs})", exit_code=failure.exit_code
            ) from failure
        raise
    shutil.rmtree(root)
    report_leftovers(marks)
    say(f"done in {time.monotonic() - started:.1f} s")
