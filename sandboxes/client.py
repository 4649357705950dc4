"""Client commands that work inside sandboxes: run, exec, cp, logs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Unpack
from uuid import uuid4

import typer

from sandboxes import attach, copy, output
from sandboxes.connection import (
    CommandAfterDashes,
    CommandArgument,
    Connect,
    CpusOption,
    DiskOption,
    EnvOption,
    IdArgument,
    JsonOption,
    LabelOption,
    MemoryOption,
    TimeoutOption,
    environment,
    pairs,
    with_connection,
)
from sandboxes.errors import SERVICE_FAILED, ServiceFailedError, client_errors, never_sent
from sandboxes.output import waiting
from ucloud_sandboxes_sdk import (
    AuthenticationError,
    CreateProgress,
    ExecOptions,
    Image,
    InvalidRequestError,
    NeverFitsError,
    SandboxApiError,
    SandboxClient,
    SandboxHandle,
    SandboxSpec,
    SpecConflictError,
)
from ucloud_sandboxes_sdk.cleanup import repeat_until_found, to_its_end

# Long enough for any image that has a sleep: the command runs beside it.
STAY_UP: Final = ("sleep", "2147483647")
# What a client that was killed leaves behind goes away by itself; a running command keeps it up.
IDLE_SECONDS: Final = 600
RUN_LABEL: Final = f"{output.INTERNAL}run"
# The service refused before it made anything; a sandbox of that id, if there is one, is somebody else's.
NOTHING_MADE: Final = (AuthenticationError, InvalidRequestError, NeverFitsError, SpecConflictError)
REACH_SECONDS: Final = 12.0  # as long as a restart of the gateway takes; a service not reached by then is not there
QUICK: Final = 0.1  # seconds in which a command that ends costs one round trip

ImageArgument = Annotated[str, typer.Argument(metavar="IMAGE", help="Image reference, e.g. python:3.12-slim.")]
NetworkOption = Annotated[str, typer.Option(metavar="none|bridge", help="No network, or outbound only.")]
TtlOption = Annotated[int | None, typer.Option(metavar="SECONDS", help="Delete the sandbox after this long.")]
NameOption = Annotated[str | None, typer.Option(metavar="ID", help="Id of the sandbox; default: a new one.")]
RuntimeOption = Annotated[
    str | None, typer.Option(metavar="runsc|docker", help="Engine; default: the service chooses.")
]
IsolationOption = Annotated[str | None, typer.Option(metavar="gvisor|runc", help="Isolation; default: gvisor.")]
GpusOption = Annotated[str | None, typer.Option(metavar="N|all|device=0,1", help="GPUs, as for docker run.")]
KeepOption = Annotated[
    bool, typer.Option("--keep/--rm", help="Leave the sandbox running, or delete it when the command has ended.")
]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)


def run(
    connect: Connect,
    image: ImageArgument,
    command: CommandArgument,
    cpus: CpusOption = None,
    memory: MemoryOption = None,
    disk: DiskOption = None,
    network: NetworkOption = "none",
    ttl: TtlOption = None,
    env: EnvOption = None,
    label: LabelOption = None,
    name: NameOption = None,
    runtime: RuntimeOption = None,
    isolation: IsolationOption = None,
    gpus: GpusOption = None,
    keep: KeepOption = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a sandbox, run one command in it, and delete it.

    The exit code is the command's own; 125 when the service failed.  Ctrl-C deletes the sandbox.

    Example:  sandboxes run --memory 512 python:3.12-slim -- python -c "print('hello')"
    """
    shape = {"cpus": cpus, "memory_mb": memory, "disk_mb": disk, "gpus": _gpus(gpus), "network": network}
    where = {"runtime": runtime, "isolation": isolation}
    life = {"ttl_seconds": ttl, "idle_seconds": None if keep else IDLE_SECONDS}
    wanted = {key: value for key, value in (shape | where | life).items() if value is not None}
    with client_errors(ServiceFailedError), attach.ended_by_signals():
        spec = _spec(name, image, environment(env), pairs(label, "--label"), wanted)
        with _sandbox_for(connect().client(), spec, keep=keep) as sandbox:
            options: ExecOptions = {"timeout_seconds": timeout}
            code = _execute(sandbox, command, stdin=False, as_json=as_json, pass_interrupt=False, **options)
    if keep:
        output.complain(f"sandbox {spec.id} stays; delete it with: sandboxes rm {spec.id}")
    raise typer.Exit(code)


def _gpus(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


def _spec(
    name: str | None, image: str, env: dict[str, str], labels: dict[str, str], wanted: dict[str, Any]
) -> SandboxSpec:
    if name is not None:
        # Makes this spec unlike every other, so that a sandbox of that name is never taken for ours, and deleted.
        labels = labels | {RUN_LABEL: uuid4().hex}
    name = name or f"run-{uuid4().hex[:12]}"
    source = Image.from_registry(image)
    return SandboxSpec(id=name, image=source, command=STAY_UP, env=env, labels=labels, **wanted)


@contextmanager
def _sandbox_for(client: SandboxClient, spec: SandboxSpec, *, keep: bool) -> Iterator[SandboxHandle]:
    """Create a sandbox for the block; delete it after, unless it is to be kept or was never ours."""
    failures: list[SandboxApiError] = []
    ours, answered = True, False
    try:
        try:
            sandbox = _create(client, spec, failures)
            answered = True
        except SandboxApiError as error:
            ours = not isinstance(error, NOTHING_MADE) and not all(map(never_sent, (*failures, error)))
            answered = error.status_code is not None
            raise
        yield sandbox
    finally:
        if ours and not keep:
            _delete(client, spec.id, answered)


def _create(client: SandboxClient, spec: SandboxSpec, failures: list[SandboxApiError]) -> SandboxHandle:
    """Create a sandbox; append the errors of attempts that are retried to ``failures``."""
    with waiting(f"starting sandbox {spec.id}") as show:

        def report(progress: CreateProgress) -> None:
            failures.append(progress.error)
            if progress.waited_seconds >= REACH_SECONDS and all(map(never_sent, failures)):
                raise progress.error
            show(f"starting sandbox {spec.id}: {progress.error}")

        return client.create_sandbox(spec, on_progress=report)


def _delete(client: SandboxClient, sandbox_id: str, answered: bool) -> None:
    """Delete the sandbox; a further Ctrl-C ends the wait for it, and not the deletion.

    Args:
        client: of the service.
        sandbox_id: which.
        answered: the service has answered its create, which otherwise may arrive after this.
    """

    def delete() -> bool:
        return bool(client.delete_sandbox(sandbox_id)["deleted"])

    try:
        with waiting(f"deleting sandbox {sandbox_id}"):
            to_its_end(delete if answered else lambda: repeat_until_found(delete))
    except SandboxApiError as error:
        # The command's own outcome is what the caller is waiting for.
        message = f"warning: sandbox {sandbox_id} is deleted after {IDLE_SECONDS} idle seconds, not now: {error}"
        output.complain(message)


def exec_(
    connect: Connect,
    sandbox_id: IdArgument,
    command: CommandArgument,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Send standard input, byte for byte.")
    ] = False,
    env: EnvOption = None,
    working_dir: Annotated[
        str | None, typer.Option("--workdir", "-w", metavar="DIR", help="Working directory.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="UID[:GID]", help="User inside.")] = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a command in a sandbox.

    The exit code is the command's own; 125 when the service failed.  Ctrl-C is passed on; twice kills.

    Example:  tar -c src | sandboxes exec -i my-box -- tar -x
    """
    with client_errors(ServiceFailedError):
        code = _execute(
            SandboxHandle(connect().client(), sandbox_id),
            command,
            stdin=interactive,
            as_json=as_json,
            env=environment(env),
            working_dir=working_dir,
            user=user,
            timeout_seconds=timeout,
        )
    raise typer.Exit(code)


def _execute(
    sandbox: SandboxHandle,
    command: list[str],
    *,
    stdin: bool,
    as_json: bool,
    pass_interrupt: bool = True,
    **options: Unpack[ExecOptions],
) -> int:
    """Run a command attached to this terminal and return its exit code."""
    if as_json:
        data = sys.stdin.buffer.read() if stdin else None
        result = sandbox.exec(command, input=data, **options)
        output.print_json(attach.as_json(result, sandbox.id))
        return result.exit_code if result.exit_code is not None else SERVICE_FAILED
    quick = None if stdin else QUICK
    handle = sandbox.client.start_exec(sandbox.id, command, stdin=stdin, wait_seconds=quick, **options)
    return attach.follow(handle, stdin=stdin, pass_interrupt=pass_interrupt)


def cp(
    connect: Connect,
    source: Annotated[str, typer.Argument(metavar="SRC", help="ID:PATH, a local path, or - for standard input.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="ID:PATH, a local path, or - for standard output.")],
    as_json: JsonOption = False,
) -> None:
    """Copy a file into or out of a sandbox.

    Relative paths in a sandbox begin at its working directory; a file appears whole or not at all.

    Example:  sandboxes cp data.csv my-box:/workspace/  &&  sandboxes cp my-box:result.json -
    """
    places = copy.parse_place(source), copy.parse_place(target)
    with client_errors():
        copied = copy.copy(connect().client(), *places)
    if as_json and target != copy.PIPE:
        output.print_json(copied)


def logs(connect: Connect, sandbox_id: IdArgument, as_json: JsonOption = False) -> None:
    """Print the output of a sandbox's first process, while it runs and after.

    Its stdout goes to stdout and its stderr to stderr, byte for byte.

    Example:  sandboxes logs my-box 2>/dev/null
    """
    with client_errors():
        client = connect().client()
        if as_json:
            streams = {name: b"".join(client.iter_logs(sandbox_id, name)) for name in ("stdout", "stderr")}
            output.print_json({name: data.decode(errors="replace") for name, data in streams.items()})
            return
        for piece in client.iter_logs(sandbox_id, "stdout"):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        for piece in client.iter_logs(sandbox_id, "stderr"):
            sys.stderr.buffer.write(piece)
        sys.stderr.buffer.flush()


for _command in (run, exec_, cp, logs):
    _kind = CommandAfterDashes if _command in (run, exec_) else None
    app.command(_command.__name__.rstrip("_"), cls=_kind)(with_connection(_command))
