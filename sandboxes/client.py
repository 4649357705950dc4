"""The commands of the service's users.  Here those that work inside sandboxes: run, exec, cp, logs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Unpack
from uuid import uuid4

import typer

from sandboxes import attach, copy, fleet, output
from sandboxes.arguments import (
    CommandAfterDashes,
    CommandArgument,
    CpusOption,
    DiskOption,
    EnvOption,
    FindAccess,
    GpusOption,
    IdArgument,
    ImageArgument,
    IsolationOption,
    JsonOption,
    KeepOption,
    LabelOption,
    MemoryOption,
    NameOption,
    NetworkOption,
    RuntimeOption,
    TimeoutOption,
    TtlOption,
    environment,
    gpu_wish,
    pairs,
    with_access,
)
from sandboxes.connection import SERVICE_FAILED, failures, is_unreached
from sandboxes.errors import CommandFailed
from sandboxes.progress import waiting
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

# Long enough for any image that has a sleep: the command runs beside it.
STAY_UP: Final = ("sleep", "2147483647")
# What a client that was killed leaves behind goes away by itself; a running command keeps it up.
IDLE_SECONDS: Final = 600
RUN_LABEL: Final = f"{output.INTERNAL}run"
# The service refused before it made anything; a sandbox of that id, if there is one, is somebody else's.
NOTHING_MADE: Final = (AuthenticationError, InvalidRequestError, NeverFitsError, SpecConflictError)
REACH_SECONDS: Final = 12.0  # a restart of the gateway takes that long; where nobody was reached till then, nobody is
QUICK: Final = 0.1  # seconds in which a command that ends costs one round trip

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)


def run(
    access: FindAccess,
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
    shape = {"cpus": cpus, "memory_mb": memory, "disk_mb": disk, "gpus": gpu_wish(gpus), "network": network}
    where = {"runtime": runtime, "isolation": isolation}
    life = {"ttl_seconds": ttl, "idle_seconds": None if keep else IDLE_SECONDS}
    wanted = {key: value for key, value in (shape | where | life).items() if value is not None}
    with failures(SERVICE_FAILED), attach.ended_by_signals():
        spec = _spec(name, image, environment(env), pairs(label, "--label"), wanted)
        with _sandbox_for(_service(access), spec, keep=keep) as sandbox:
            options: ExecOptions = {"timeout_seconds": timeout}
            code = _execute(sandbox, command, stdin=False, as_json=as_json, pass_interrupt=False, **options)
    if keep:
        print(f"sandbox {spec.id} stays; delete it with: sandboxes rm {spec.id}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(code)


def exec_(
    access: FindAccess,
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
    with failures(SERVICE_FAILED):
        sandbox = SandboxHandle(_service(access), sandbox_id)
        code = _execute(
            sandbox,
            command,
            stdin=interactive,
            as_json=as_json,
            env=environment(env),
            working_dir=working_dir,
            user=user,
            timeout_seconds=timeout,
        )
    raise typer.Exit(code)


def cp(
    access: FindAccess,
    source: Annotated[str, typer.Argument(metavar="SRC", help="ID:PATH, a local path, or - for standard input.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="ID:PATH, a local path, or - for standard output.")],
    as_json: JsonOption = False,
) -> None:
    """Copy a file into or out of a sandbox.

    Relative paths in a sandbox begin at its working directory; a file appears whole or not at all.

    Example:  sandboxes cp data.csv my-box:/workspace/  &&  sandboxes cp my-box:result.json -
    """
    places = copy.place(source), copy.place(target)
    with failures():
        copied = copy.copy(access().client(), *places)
    if as_json and target != copy.PIPE:
        output.print_json(copied)


def logs(
    access: FindAccess,
    sandbox_id: IdArgument,
    as_json: JsonOption = False,
) -> None:
    """Print the output of a sandbox's first process, while it runs and after.

    Its stdout goes to stdout and its stderr to stderr, byte for byte.

    Example:  sandboxes logs my-box 2>/dev/null
    """
    with failures():
        client = access().client()
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


def _service(access: FindAccess) -> SandboxClient:
    """The service's client; that none is known is no outcome of the command."""
    try:
        return access().client()
    except CommandFailed as failure:
        raise CommandFailed(failure.message, exit_code=SERVICE_FAILED) from failure


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
    """A new sandbox, which is deleted unless it is to be kept or was never ours."""
    tries: list[SandboxApiError] = []
    ours = True
    try:
        try:
            sandbox = _create(client, spec, tries)
        except SandboxApiError as error:
            ours = not isinstance(error, NOTHING_MADE) and not all(map(is_unreached, (*tries, error)))
            raise
        yield sandbox
    finally:
        if ours and not keep:
            _delete(client, spec.id)


def _delete(client: SandboxClient, sandbox_id: str) -> None:
    try:
        with waiting(f"deleting sandbox {sandbox_id}"):
            client.delete_sandbox(sandbox_id)
    except SandboxApiError as error:
        # The command's own outcome is what the caller is waiting for.
        message = f"warning: sandbox {sandbox_id} is deleted after {IDLE_SECONDS} idle seconds, not now: {error}"
        print(message, file=sys.stderr)  # noqa: T201 - the command line speaks on stderr


def _create(client: SandboxClient, spec: SandboxSpec, tries: list[SandboxApiError]) -> SandboxHandle:
    """A new sandbox; what earlier tries met is put into ``tries``."""
    with waiting(f"starting sandbox {spec.id}") as say:

        def tell(step: CreateProgress) -> None:
            tries.append(step.error)
            if step.waited_seconds >= REACH_SECONDS and all(map(is_unreached, tries)):
                raise step.error
            say(f"starting sandbox {spec.id}: {step.error}")

        return client.create_sandbox(spec, on_progress=tell)


def _execute(
    sandbox: SandboxHandle,
    command: list[str],
    *,
    stdin: bool,
    as_json: bool,
    pass_interrupt: bool = True,
    **options: Unpack[ExecOptions],
) -> int:
    """Runs a command at the terminal's end; its exit code."""
    if as_json:
        data = sys.stdin.buffer.read() if stdin else None
        result = sandbox.exec(command, input=data, **options)
        output.print_json(attach.as_json(result, sandbox.id))
        return result.exit_code if result.exit_code is not None else SERVICE_FAILED
    quick = None if stdin else QUICK
    handle = sandbox.client.start_exec(sandbox.id, command, stdin=stdin, wait_seconds=quick, **options)
    return attach.follow(handle, stdin=stdin, pass_interrupt=pass_interrupt)


for _command in (run, exec_, fleet.ls, cp, logs, fleet.rm, fleet.pause, fleet.resume, fleet.restart, fleet.nodes):
    _kind = CommandAfterDashes if _command in (run, exec_) else None
    app.command(_command.__name__.rstrip("_"), cls=_kind)(with_access(_command))
