"""The whole service on this machine, as processes: what `sandboxes up` and `sandboxes demo` start and end.

Gateway and autoscaler die with this process, whatever ends it.  The node agent, its sandboxes and the service's
own Docker engine do not: after a SIGKILL they go on, and the next start over the same state directory takes them over.
"""

import contextlib
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import tomli_w
from pydantic import TypeAdapter, ValidationError

from gateway.client import GatewayClient, GatewayError, GatewayUnreachableError
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import NodeRecord
from gateway.wire.states import NodeState
from gateway.wire.system import Check, PolicyAnswer, Verdict
from gateway.wire.tenants import DEFAULT_TENANT
from gateway.wire.tokens import TokenScope
from providers.local.home import Home
from sandboxes.errors import InterruptedStartError
from sandboxes.local import dockerd
from sandboxes.local.residue import Marks
from sandboxes.local.state_dir import StateDir, write_private
from sandboxes.local.supervisor import Child, ProcessSupervisor, StopRequested, argv_of, run_command

HOST: Final = "127.0.0.1"
DOCTOR_SECONDS: Final = 120.0  # it starts a throwaway sandbox
AUTOSCALER_SECONDS: Final = 60.0
GATEWAY_SECONDS: Final = 60.0
GATEWAY_BACK_SECONDS: Final = 20.0
ENGINE_SECONDS: Final = 60.0
NODE_SECONDS: Final = 180.0
ENGINE_STOP_SECONDS: Final = 30.0
DELETE_SECONDS: Final = 30.0  # what the node has not deleted by then goes with it
RELEASE_SECONDS: Final = 60.0
RELEASE_GRACE: Final = 20.0
STEP: Final = 0.2  # between two polls whether a node is ready: the API has no event for it
LOOK_EVERY: Final = 2.0  # between two looks at what the gateway says of its policy file, where it has one
REPORT_SECONDS: Final = 30.0  # between two lines while nothing happens
DELETERS: Final = 8

Say = Callable[[str], None]


@dataclass(frozen=True)
class LocalService:
    """URL and token files of a service that is up."""

    url: str
    client_token: Path
    operator_token: Path

    def operator(self) -> GatewayClient:
        """Return a client with the operator's token."""
        return GatewayClient(self.url, self.operator_token.read_text())


@dataclass(frozen=True)
class Ending:
    """What the end of a run of `up` ends, besides the gateway and the autoscaler that it started."""

    nodes: bool
    """The nodes, with their sandboxes."""
    engine: bool


def ending(*, was_up: bool, node_before: bool, engine_before: bool) -> Ending:
    """Decide what a run ends: all, once it was up; before that nothing that an earlier run has left to be taken over.

    Args:
        was_up: its start succeeded, so that whatever there was is its own now.
        node_before: a node of an earlier run was there when it began.
        engine_before: likewise the service's own Docker engine.
    """
    nodes = was_up or not node_before
    return Ending(nodes, engine=nodes and (was_up or not engine_before))


def describe_node(node: NodeRecord, since: datetime) -> str | None:
    """Return what a start that began at ``since`` still waits for; ``None`` once the node is ready.

    What the gateway knows of a node outlives both of them: only a heartbeat since then shows that the node runs.
    """
    if node.state is not NodeState.READY:
        return f"{node.id} is {node.state}"
    if node.heartbeat_at is None or node.heartbeat_at < since:
        return f"{node.id} has not reported since this start"
    return None


def policy_news(before: PolicyAnswer | None, now: PolicyAnswer) -> str | None:
    """Return what is to be said of the policy file after two looks; ``None`` when there is nothing new.

    Args:
        before: what the look before found, if there was one.
        now: what this one found.
    """
    if now.problem is not None:
        is_known = before is not None and before.problem == now.problem
        return None if is_known else f"the new policy is not used, the one before still holds: {now.problem}"
    if before is None:
        return None
    if before.problem is not None:
        return "the policy file is right again, and holds"
    return "the policy file has changed, and holds" if before.version != now.version else None


class Stack:
    """One service over one state directory.

    Args:
        directory: its state directory, made and locked by the caller.
        port: where the gateway listens on this machine.
        say: takes one line of progress.
        policy: the gateway's policy file; ``None`` leaves it to the environment.
    """

    def __init__(self, directory: StateDir, port: int, say: Say, policy: Path | None = None) -> None:
        self._directory = directory
        self._port = port
        self._say = say
        self._supervisor = ProcessSupervisor(say)
        self._supervisor.catch_signals()
        self._began = datetime.now(UTC)
        self._was_up = False
        self._node_before = any(self._homes())
        self._engine_before = dockerd.pid_of(directory.docker / "dockerd.pid") is not None
        self.docker_socket = directory.docker_socket
        url = f"http://{HOST}:{port}"
        self.service = LocalService(url, directory.tokens / "client", directory.tokens / "operator")
        self._environment = {
            "SANDBOXES_GATEWAY_HOST": HOST,
            "SANDBOXES_GATEWAY_PORT": str(port),
            "SANDBOXES_GATEWAY_STATE_DIR": str(directory.gateway),
        }
        if policy is not None:
            self._environment["SANDBOXES_GATEWAY_POLICY_FILE"] = str(policy.absolute())

    @property
    def _autoscaler_toml(self) -> Path:
        return self._directory.root / "autoscaler.toml"

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self) -> NodeRecord:
        """Start everything and return the first ready node.  The caller calls `end` in every case.

        Raises:
            click.ClickException: something is missing or did not start.
        """
        self._require_earlier_url()
        self._require_free_port()
        self._check_machine()
        self._start_engine()
        self._make_tokens()
        self._start_gateway()
        self._check_tokens()
        write_private(self._directory.url, self.service.url + "\n")
        self._start_autoscaler()
        node = self._await_node()
        self._was_up = True
        return node

    def wait(self) -> StopRequested:
        """Keep everything alive until a signal asks for the end, and say what becomes of the policy file."""
        before: PolicyAnswer | None = None
        while True:
            if (now := self._policy()) is not None:
                if (news := policy_news(before, now)) is not None:
                    self._say(news)
                before = now
            has_file = before is None or before.file is not None
            if (stop := self._supervisor.wait(LOOK_EVERY if has_file else 3600.0)) is not None:
                return stop

    def _policy(self) -> PolicyAnswer | None:
        """Return what the gateway says of its policy file; ``None`` while it does not answer."""
        client = GatewayClient(
            self.service.url, self.service.operator_token.read_text(), timeout=(5.0, 5.0), attempts=1
        )
        try:
            return client.policy(DEFAULT_TENANT)
        except (GatewayError, GatewayUnreachableError):
            return None

    def _require_earlier_url(self) -> None:
        """Refuse another URL where a node outlived a SIGKILL: it knows the URL of its start and no other."""
        earlier = self._directory.url.read_text().strip() if self._directory.url.exists() else self.service.url
        if earlier != self.service.url and any(self._directory.instances.iterdir()):
            raise click.ClickException(
                f"an earlier start over {self._directory.root} was killed, and its node still serves {earlier};"
                f" start with --port {earlier.rpartition(':')[2]} to take it over"
            )

    def _require_free_port(self) -> None:
        """Refuse a taken port: a gateway of an earlier start cannot be there any more, so it is somebody else's."""
        try:
            socket.create_server((HOST, self._port)).close()
        except OSError as error:
            raise click.ClickException(
                f"port {self._port} of {HOST}: {error.strerror or error};"
                " end what listens there (ss -ltnp), or choose another with --port"
            ) from error

    def _check_machine(self) -> None:
        self._say("checking this machine")
        answer = run_command("doctor", "--json", env=self._environment, within=DOCTOR_SECONDS, may_fail=True)
        try:
            rows = TypeAdapter(list[Check]).validate_json(answer)
        except ValidationError as error:
            raise click.ClickException("'sandboxes doctor --json' did not print its rows; run it to see why") from error
        # What a machine of one role may lack, the whole service needs.
        errors = [
            f"{row.name}: {row.found}; cure: {row.cure}"
            for row in rows
            if row.verdict is Verdict.ERROR or (row.name.endswith("packages") and row.verdict is not Verdict.OK)
        ]
        if errors:
            raise click.ClickException(" | ".join(errors))

    def _start_engine(self) -> None:
        ours = self._directory.docker_socket
        child = Child(
            name="docker engine",
            argv=argv_of("node", "engine", "--root", str(self._directory.docker)),
            log=self._directory.logs / "docker.log",
            ready=lambda: dockerd.answers(ours),
            dies_with_us=False,
            stop_seconds=ENGINE_STOP_SECONDS,
        )
        if dockerd.answers(ours):
            self._say("taking over the Docker engine of an earlier start")
            if (pid := dockerd.pid_of(self._directory.docker / "dockerd.pid")) is not None:
                self._supervisor.take_over(child, pid)
        elif dockerd.answers(dockerd.DEFAULT_SOCKET):
            self.docker_socket = dockerd.DEFAULT_SOCKET
            self._say(f"using the Docker engine at {self.docker_socket}")
        else:
            self._say("starting a Docker engine")
            self._supervisor.start(child, within=ENGINE_SECONDS)

    def _start_gateway(self) -> None:
        self._say("starting the gateway")
        child = Child(
            name="gateway",
            argv=argv_of("gateway", "run"),
            log=self._directory.logs / "gateway.log",
            env=self._environment,
            ready=self._gateway_ready,
        )
        self._supervisor.start(child, within=GATEWAY_SECONDS)

    def _gateway_ready(self) -> bool:
        try:
            return GatewayClient(self.service.url, "", attempts=1).readiness().ok
        except (GatewayError, GatewayUnreachableError):
            return False

    def _start_autoscaler(self) -> None:
        self._say("starting the autoscaler")
        config = self._autoscaler_toml
        write_private(config, self._autoscaler_settings())
        child = Child(
            name="autoscaler",
            argv=argv_of("autoscaler", "run", "--config", str(config), "--execute"),
            log=self._directory.logs / "autoscaler.log",
        )
        self._supervisor.start(child, within=AUTOSCALER_SECONDS)

    def _autoscaler_settings(self) -> str:
        """Return settings with one pool of one node on this machine."""
        pool = {"name": "local", "provider": "local", "min": 1, "max": 1}
        settings = {
            "gateway_url": self.service.url,
            "token_file": str(self.service.operator_token),
            "state_dir": str(self._directory.autoscaler),
            "providers": {"local": {"root": str(self._directory.instances)}},
            "pools": [pool | {"node": {"docker_url": f"unix://{self.docker_socket}"}}],
        }
        return tomli_w.dumps(settings)

    def _await_node(self) -> NodeRecord:
        """Wait for the first ready node and return it.

        Raises:
            click.ClickException: none came in time, or what was to bring it died; the sentence says why.
            InterruptedStartError: a signal asked for the end meanwhile.
        """
        self._say("waiting for the first node")
        client = self.service.operator()
        seen, started = "", time.monotonic()
        said_at = started
        while (waited := time.monotonic() - started) < NODE_SECONDS:
            self._refuse_failed_node()
            with contextlib.suppress(GatewayError, GatewayUnreachableError):
                nodes = [(node, describe_node(node, self._began)) for node in client.nodes()]
                if ready := [node for node, lacks in nodes if lacks is None]:
                    return ready[0]
                now = ", ".join(lacks for _, lacks in nodes if lacks) or "none has registered yet"
                if now != seen or time.monotonic() - said_at >= REPORT_SECONDS:
                    seen, said_at = now, time.monotonic()
                    self._say(f"nodes: {now}, after {waited:.0f} s")
            if self._supervisor.wait(STEP, restart=False) is not None:
                raise InterruptedStartError("stopped while starting")
        logs = [str(self._directory.logs / "autoscaler.log"), *(str(self._kept(home)) for home in self._homes())]
        raise click.ClickException(f"no node was ready after {NODE_SECONDS:.0f} s ({seen}); see {', '.join(logs)}")

    def _homes(self) -> list[Home]:
        """Return the instances of the nodes."""
        return [Home(path) for path in sorted(self._directory.instances.iterdir()) if not path.name.startswith(".")]

    def _refuse_failed_node(self) -> None:
        """Raise the sentence of a node that has ended, though its instance would start it again and again."""
        for home in self._homes():
            if (failure := home.failure) is not None:
                raise click.ClickException(f"the node cannot start: {failure} (its log: {self._kept(home)})")

    def _kept(self, home: Home) -> Path:
        """Return a copy of an instance's log, which goes with the instance."""
        copy = self._directory.logs / f"{home.path.name}.log"
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(home.log, copy)
            copy.chmod(0o600)
        return copy

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _make_tokens(self) -> None:
        """Create the first tokens: without one the gateway does not start."""
        fresh = not (self._directory.gateway / "gateway.db").exists()
        for scope, path in self._token_files():
            if fresh or not path.exists():
                self._make_token(scope, path)

    def _check_tokens(self) -> None:
        """Replace tokens that the gateway no longer accepts: they were revoked, or the database was changed."""
        for scope, path in self._token_files():
            try:
                next(GatewayClient(self.service.url, path.read_text()).sandboxes(), None)
            except GatewayError as error:
                if error.code is not ErrorCode.UNAUTHORIZED:
                    raise click.ClickException(f"the gateway refuses to serve: {error}") from error
                self._say(f"the {scope} token in {path} no longer works; creating a new one")
                self._make_token(scope, path)

    def _token_files(self) -> tuple[tuple[TokenScope, Path], ...]:
        return (TokenScope.OPERATOR, self.service.operator_token), (TokenScope.CLIENT, self.service.client_token)

    def _make_token(self, scope: TokenScope, path: Path) -> None:
        # The directory is named so that an exported URL, which an earlier `up` may have printed, does not win.
        where = ("--state-dir", str(self._directory.gateway))
        words = ("token", "create", "--scope", scope.value, "--name", f"up-{scope.value}", *where)
        write_private(path, run_command(*words, env=self._environment).strip() + "\n")

    def marks(self) -> Marks:
        """Return what stands in the name, path or command line of everything that this service has made so far."""
        homes = sorted(self._directory.instances.iterdir())
        tags = [run_command("node", "tag", "--root", str(home / "node")).strip() for home in homes]
        return (str(self._directory.root), *tags)

    # -- end ----------------------------------------------------------------------------------------------------------

    def end(self) -> list[str]:
        """End everything, in order, and remove sandboxes and nodes; after a failed start only what `ending` allows.

        Idempotent.

        Returns:
            A sentence for each thing that could not be ended; the next start over this directory takes it over.
        """
        ends = ending(was_up=self._was_up, node_before=self._node_before, engine_before=self._engine_before)
        if not ends.nodes:
            return self._leave_nodes()
        problems: list[str] = []
        self._directory.url.unlink(missing_ok=True)
        steps = [self._end_sandboxes, self._end_nodes, self._supervisor.stop_all]
        for step in [*steps, self._end_engine] if ends.engine else steps:
            try:
                step()
            except (click.ClickException, GatewayError, GatewayUnreachableError) as error:
                problems.append(str(error))
        return problems

    def _leave_nodes(self) -> list[str]:
        """End what this start has started, but not what an earlier one has left; say so, and return no problems."""
        for name in ("autoscaler", "gateway"):
            self._supervisor.stop(name)
        self._say(
            "what an earlier start has left goes on, its node and sandboxes too; the next start takes it over, or to"
            f" remove them: sandboxes autoscaler release --config {self._autoscaler_toml}"
        )
        return []

    def _end_sandboxes(self) -> None:
        if not self._supervisor.has("gateway"):
            return
        # It may have died a moment ago and be on its way back.
        for _ in range(int(GATEWAY_BACK_SECONDS / STEP)):
            if self._gateway_ready():
                break
            self._supervisor.wait(STEP)
        token = self.service.operator_token.read_text()
        client = GatewayClient(self.service.url, token, timeout=(5.0, 15.0), attempts=1)
        ids = [sandbox.id for sandbox in client.sandboxes()]
        if not ids:
            return
        self._say(f"deleting {len(ids)} sandbox{'es' if len(ids) > 1 else ''}")
        pool = ThreadPoolExecutor(DELETERS)
        done, late = wait([pool.submit(client.delete_sandbox, each) for each in ids], DELETE_SECONDS)
        pool.shutdown(wait=False, cancel_futures=True)
        failed = [each for each in done if not each.cancelled() and each.exception() is not None]
        if late or failed:
            self._say(f"{len(late) + len(failed)} of them were not deleted in time; they go with the node")

    def _end_nodes(self) -> None:
        config = self._autoscaler_toml
        self._supervisor.stop("autoscaler")
        if config.exists() and any(self._directory.instances.iterdir()):
            self._say("ending the node")
            words = ("autoscaler", "release", "--config", str(config), "--within", str(RELEASE_SECONDS))
            try:
                run_command(*words, within=RELEASE_SECONDS + RELEASE_GRACE)
            except click.ClickException as error:
                failures = [f"{home.failure} (its log: {home.log})" for home in self._homes() if home.failure]
                retry = f"sandboxes {' '.join(words[:4])}"
                raise click.ClickException(
                    f"the node is still there: {'; '.join(failures) or error.message}; to try again: {retry}"
                ) from error

    def _end_engine(self) -> None:
        """End an engine that was taken over; one that this process started is among its children."""
        if dockerd.answers(self._directory.docker_socket):
            dockerd.end(self._directory.docker / "dockerd.pid", ENGINE_STOP_SECONDS)
        dockerd.release(self._directory.docker / "data")
