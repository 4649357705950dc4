"""``sandboxes demo``: the README's example in a real gVisor sandbox, and a check that nothing is left behind."""

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

import click
import typer

from gateway.wire.text import printable
from sandboxes.local import residue
from sandboxes.local.stack import HOST, LocalService, Stack
from sandboxes.local.state_dir import StateDir, locked
from sandboxes.local.supervisor import run_command
from sandboxes.output import say
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
"""Prints which kernel a process sees, and the line of that kernel's log that names gVisor (as ``dmesg`` shows it)."""

app = typer.Typer()


@app.command()
def demo() -> None:
    """Start the service, say hello from a sandbox, and take everything down again.

    It uses a state directory and a port of its own and touches no service that is already running.
    """
    started = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="sbd-", dir="/var/tmp"))  # /tmp may be in memory
    directory = StateDir(root)
    marks: residue.Marks = (str(root),)
    try:
        directory.make()
        with locked(directory.lock):
            stack = Stack(directory, free_port(), say)
            try:
                marks = hello(stack)
            except SandboxApiError as error:
                raise click.ClickException(f"the service refused: {error}") from error
            finally:
                say("taking everything down")
                problems = stack.end()
        if problems:
            raise click.ClickException(f"not everything could be ended: {'; '.join(problems)}; see {root}")
    except click.ClickException:
        if directory.logs.is_dir():
            say(f"logs are in {directory.logs}")
        raise
    shutil.rmtree(root)
    report_leftovers(marks)
    say(f"done in {time.monotonic() - started:.1f} s")


def free_port() -> int:
    """Return a port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def hello(stack: Stack) -> residue.Marks:
    """Start the service, show what there is to show, and return what its things are marked with."""
    node = stack.start()
    marks = stack.marks()
    with SandboxClient(base_url=stack.service.url, api_token=stack.service.client_token.read_text().strip()) as client:
        image, sandbox, create = first_sandbox(client, stack.docker_socket)
        proof = prove(sandbox, create)
    say(f"running {EXAMPLE.name} from the README")
    typer.echo(run_example(stack.service, image).rstrip())
    show(proof, node.id)
    return marks


def first_sandbox(client: SandboxClient, docker_socket: Path) -> tuple[str, SandboxHandle, float]:
    """Create a sandbox of the example's image, or of one made here where that cannot be pulled.

    Returns:
        The image's own reference, the sandbox, and the seconds that its create took.
    """
    say(f"creating a sandbox of {WANTED_IMAGE}")
    try:
        return WANTED_IMAGE, *_timed_create(client, WANTED_IMAGE)
    except ImageError as error:
        say(f"{WANTED_IMAGE} cannot be pulled here: {error}")
    kept = any(CACHE.glob("debian-python-*.tar"))
    say(
        "taking the image that an earlier demo made from Debian's packages instead"
        if kept
        else "making an image from Debian's packages instead (kept for the next time)"
    )
    words = ("node", "demo-image", "--docker", f"unix://{docker_socket}", "--cache", str(CACHE))
    image = run_command(*words, within=IMAGE_SECONDS).strip()
    say(f"the example runs with {image} in place of {WANTED_IMAGE}")
    return image, *_timed_create(client, image)


def _timed_create(client: SandboxClient, image: str) -> tuple[SandboxHandle, float]:
    # The example's spec, under an id of the demo's own.
    spec = SandboxSpec(
        id=f"demo-{uuid4().hex}",
        image=Image.from_registry(image),
        command=["sleep", "300"],
        cpus=1,
        memory_mb=2048,
        disk_mb=10240,
        ttl_seconds=600,
    )
    started = time.monotonic()
    return client.create_sandbox(spec), time.monotonic() - started


@dataclass(frozen=True)
class Proof:
    """What a sandbox sees of its kernel, and how long things took, in seconds."""

    isolation: str
    kernel: str
    log_line: str
    create: float
    execs: tuple[float, ...]
    delete: float


def prove(sandbox: SandboxHandle, create: float) -> Proof:
    """Ask the sandbox which kernel it sees, take times, and delete it.

    Args:
        sandbox: a new one.
        create: seconds that its create took.
    """
    seen = sandbox.exec(["python3", "-c", PROOF], timeout_seconds=60)
    if not seen.success:
        raise click.ClickException(f"the sandbox cannot read its kernel's log: {seen.stderr.strip()}")
    kernel, log_line = seen.stdout.splitlines()
    execs: list[float] = []
    for _ in range(TIMED_EXECS):
        started = time.monotonic()
        sandbox.exec(["true"], timeout_seconds=60)
        execs.append(time.monotonic() - started)
    isolation = str(sandbox.refresh().get("isolation"))
    started = time.monotonic()
    sandbox.delete()
    return Proof(isolation, kernel, log_line, create, tuple(execs), time.monotonic() - started)


def run_example(service: LocalService, image: str) -> str:
    """Run the README's example as a program of its own against this service, and return what it printed.

    Raises:
        click.ClickException: it is not in this installation, or it failed.
    """
    try:
        source = EXAMPLE.read_text()
    except FileNotFoundError as error:
        raise click.ClickException(f"{EXAMPLE} is missing; run the demo in a checkout of the project") from error
    done = subprocess.run(
        [sys.executable, "-"],
        input=source.replace(WANTED_IMAGE, image),
        env={
            **os.environ,
            "UCLOUD_SANDBOX_URL": service.url,
            "UCLOUD_SANDBOX_API_TOKEN": service.client_token.read_text().strip(),
        },
        capture_output=True,
        text=True,
        timeout=EXAMPLE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise click.ClickException(f"the example failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def show(proof: Proof, node_id: str) -> None:
    """Print isolation and times."""
    execs = sorted(proof.execs)
    typer.echo(
        f"isolation           {proof.isolation}, on node {node_id}\n"
        f"kernel inside       {printable(proof.kernel)}; its log: {printable(proof.log_line)}\n"
        f"kernel of the host  {os.uname().release}\n"
        f"times               create {proof.create * 1000:.0f} ms, exec {execs[len(execs) // 2] * 1000:.0f} ms"
        f" (median of {len(execs)}), delete {proof.delete * 1000:.0f} ms"
    )


def report_leftovers(marks: residue.Marks) -> None:
    """Look for what the service may have left on the machine itself.

    Raises:
        click.ClickException: something is left; the sentence lists it.
    """
    found = residue.find_settled(marks)
    left = [f"{kind} {name}" for kind, names in found.items() for name in names]
    if left:
        raise click.ClickException(f"left behind: {', '.join(left)}")
    typer.echo(f"left behind         nothing (looked for: {', '.join(found)})")
