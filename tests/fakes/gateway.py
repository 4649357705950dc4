"""A small gateway in memory on a real socket, for tests of its clients: SDK, command line and node agent.

It speaks the public API and the nodes' API with the wire models, runs no processes (``program`` says what a command
does), and misbehaves on demand: `Gateway.next` queues what it does instead of its own answer, one entry per call.
"""

import base64
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import parse_qs, unquote

from pydantic import ValidationError

from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode
from gateway.wire.exec import ExecEvent, ExecEvents, ExecRequest, ExecSession, StdinRequest, StreamLine
from gateway.wire.nodes import Heartbeat, HeartbeatAnswer, RegisterAnswer, RegisterRequest
from gateway.wire.sandboxes import RecordedSpec, SandboxEnvelope, SandboxList, SandboxRecord, SandboxSpec
from gateway.wire.states import ExecStatus, SandboxState
from tests.fakes.scripted import Recorded, Reply, ScriptedServer

TOKEN = "test-token"
CREDENTIAL = "credential"
CONTROL_TOKEN = "control"

Output = list[tuple[str, bytes]]
Program = Callable[[ExecRequest, bytes], tuple[Output, int]]


def error(code: ErrorCode, sentence: str = "no", *, headers: dict[str, str] | None = None, **more: Any) -> Reply:
    """Return an error of the gateway."""
    rule = CODE_RULES[code]
    body = ErrorBody(error=sentence, code=code, retryable=rule.retryable, **more)
    return Reply(rule.status, body.model_dump_json(exclude_none=True).encode(), headers or {})


class RefusedError(Exception):
    """An error with which a handler answers."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.reply = error(code, sentence)


@dataclass
class Session:
    """One exec and all of its events."""

    session: ExecSession
    request: ExecRequest
    stdin: bytes = b""
    events: list[ExecEvent] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)

    def finish(self, output: Output, code: int, **changes: Any) -> None:
        at = self.session.created_at
        for stream, data in output:
            self.events.append(ExecEvent.of_bytes(len(self.events) + 1, stream, data, at))  # type: ignore[arg-type]
        self.events.append(ExecEvent(sequence=len(self.events) + 1, stream="exit", exit_code=code, created_at=at))
        totals = {name: sum(len(d) for s, d in output if s == name) for name in ("stdout", "stderr")}
        ended = {
            "status": ExecStatus.EXITED,
            "exit_code": code,
            "stdin_open": False,
            "last_sequence": len(self.events),
            "stdout_bytes": totals["stdout"],
            "stderr_bytes": totals["stderr"],
        }
        self.session = self.session.model_copy(update=ended | changes)

    def lines(self, after: int) -> list[bytes]:
        found = [StreamLine(event=event) for event in self.events if event.sequence > after]
        return [
            line.model_dump_json(exclude_none=True).encode() + b"\n"
            for line in (*found, StreamLine(session=self.session))
        ]


def echo(request: ExecRequest, stdin: bytes) -> tuple[Output, int]:
    """Write the input, or else the arguments, to stdout: the default program."""
    return [("stdout", stdin or " ".join(request.command[1:]).encode() + b"\n")], 0


class Gateway:
    """The fake; ``with Gateway() as gateway`` serves at ``gateway.url`` until the block ends."""

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self.sandboxes: dict[str, SandboxRecord] = {}
        self.sessions: dict[str, Session] = {}
        self.files: dict[tuple[str, str], bytes] = {}
        self.logs: dict[str, bytes] = {}
        self.page = 1000
        self.program: Program = echo
        self.open_session = False
        """Whether sessions run until they get a signal."""
        self.registered: list[RegisterRequest] = []
        self.heartbeats: list[Heartbeat] = []
        self.node_tokens: list[str] = []
        """The bearer of each call of a node."""
        self.node_failures: list[Reply] = []
        """Each call of a node gets one of these instead of its answer."""
        self.wanted = HeartbeatAnswer(heartbeat_seconds=5.0)
        """Answer to heartbeats."""
        self._queued: dict[tuple[str, str], list[Reply]] = {}
        self._changed = threading.Condition()
        self._server = ScriptedServer(self.reply)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def connections(self) -> int:
        """Number of connections so far."""
        return self._server.connections

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def next(self, method: str, path: str, *replies: Reply) -> None:
        """Queue replies for calls whose path ends with ``path`` (a regular expression)."""
        self._queued.setdefault((method, path), []).extend(replies)

    def sent(self, method: str, path: str) -> list[Recorded]:
        """Return the calls that arrived for such a path."""
        return [r for r in self.requests if r.method == method and re.search(path + "$", r.path)]

    def wait_for(self, what: str, ready: Callable[[], object], seconds: float = 10.0) -> None:
        """Wait until ``ready()`` holds after a call of a client."""
        with self._changed:
            assert self._changed.wait_for(ready, seconds), what

    def reported(self, sandbox_id: str) -> str | None:
        """Return the state of a sandbox in the newest heartbeat."""
        if not self.heartbeats:
            return None
        return next((i.state.value for i in self.heartbeats[-1].inventory if i.sandbox_id == sandbox_id), None)

    def reply(self, request: Recorded) -> Reply:
        with self._changed:
            self._changed.notify_all()
            self.requests.append(request)
            if request.path.startswith("/v1/nodes/"):
                return self._node(request)
            for (method, path), queue in self._queued.items():
                if queue and method == request.method and re.search(path + "$", request.path):
                    return queue.pop(0)
            if request.path != "/healthz" and request.headers.get("x-ucloud-sandbox-token") != TOKEN:
                return error(ErrorCode.UNAUTHORIZED, "the token is not known")
            try:
                return self._route(request)
            except RefusedError as refused:
                return refused.reply
            except ValidationError as problem:
                return error(ErrorCode.INVALID_REQUEST, str(problem.errors()[0]["msg"]))
            except Exception as bug:  # a defect of the fake or of a test's program must reach the test at once
                return error(ErrorCode.INTERNAL, f"the fake failed: {bug!r}")

    def _route(self, request: Recorded) -> Reply:
        if request.path == "/healthz":
            return Reply(body=b'{"ok":true}')
        match [unquote(part) for part in request.path.strip("/").split("/")]:
            case ["v1", "sandboxes"]:
                return self._create(request) if request.method == "POST" else self._list(request)
            case ["v1", "sandboxes", name, *rest]:
                return self._sandbox(name, rest[0] if rest else "", request)
            case ["v1", "exec", session, *rest]:
                return self._session(session, rest[0] if rest else "", request)
        raise RefusedError(ErrorCode.NOT_FOUND, f"no route {request.path}")

    def _node(self, request: Recorded) -> Reply:
        self.node_tokens.append(request.headers["authorization"].removeprefix("Bearer "))
        if self.node_failures:
            return self.node_failures.pop(0)
        if request.path.endswith("/heartbeat"):
            self.heartbeats.append(Heartbeat.model_validate_json(request.body))
            return Reply(body=self.wanted.model_dump_json().encode())
        self.registered.append(RegisterRequest.model_validate_json(request.body))
        answer = RegisterAnswer(
            node_id="node-1", credential=CREDENTIAL, control_token=CONTROL_TOKEN, heartbeat_seconds=5.0
        )
        return Reply(201, answer.model_dump_json().encode())

    def _sandbox(self, name: str, verb: str, request: Recorded) -> Reply:
        if not verb and request.method == "DELETE":
            gone = self.sandboxes.pop(name, None)
            deleted = gone.model_dump(mode="json") if gone else False
            return Reply(body=json.dumps({"ok": True, "deleted": deleted}).encode())
        record = self._known(name)
        if not verb:
            return _envelope(record)
        if verb == "usage":
            return Reply(body=b'{"memory_mb":12.5,"cpu_seconds":0.25,"disk_mb":1.0,"pids":2}')
        answers = {"logs": self._log, "files": self._file, "exec": self._exec}
        return answers[verb](record, request) if verb in answers else self._life(record, verb)

    def _known(self, name: str) -> SandboxRecord:
        if name not in self.sandboxes:
            raise RefusedError(ErrorCode.SANDBOX_NOT_FOUND, f"there is no sandbox {name}")
        return self.sandboxes[name]

    def _create(self, request: Recorded) -> Reply:
        spec = SandboxSpec.model_validate_json(request.body)
        known = self.sandboxes.get(spec.id)
        if known and known.spec_hash != spec.sha256():
            raise RefusedError(ErrorCode.SPEC_CONFLICT, f"sandbox {spec.id} exists with another spec")
        self.sandboxes[spec.id] = known or sandbox_record(spec)
        return _envelope(self.sandboxes[spec.id], status=200 if known else 201)

    def _list(self, request: Recorded) -> Reply:
        wanted = dict(text.split("=", 1) for text in parse_qs(request.headers["x-raw-query"]).get("label", ()))
        found = [r for r in self.sandboxes.values() if wanted.items() <= r.labels.items()]
        found = [r for r in found if request.query.get("state") in (None, r.state.value)]
        start = int(request.query.get("cursor", "0"))
        more = str(start + self.page) if start + self.page < len(found) else None
        page = SandboxList(sandboxes=found[start : start + self.page], next_cursor=more)
        return Reply(body=page.model_dump_json().encode())

    def _life(self, record: SandboxRecord, verb: str) -> Reply:
        state = SandboxState.PAUSED if verb == "pause" else SandboxState.RUNNING
        generation = record.generation + (verb == "restart")
        self.sandboxes[record.id] = record.model_copy(update={"state": state, "generation": generation})
        return _envelope(self.sandboxes[record.id])

    def _log(self, _: SandboxRecord, request: Recorded) -> Reply:
        offset = int(request.query["offset"])
        whole = self.logs.get(request.query["stream"], b"")
        data = whole[offset : offset + 4]  # small, so that a reader has to continue
        end = offset + len(data)
        chunk = {
            "stream": request.query["stream"],
            "offset": offset,
            "next_offset": end,
            "data": base64.b64encode(data).decode(),
            "eof": end == len(whole),
        }
        return Reply(body=json.dumps(chunk).encode())

    def _file(self, record: SandboxRecord, request: Recorded) -> Reply:
        name = record.id
        path = request.query["path"]
        if request.method == "PUT":
            self.files[name, path] = request.body
            return Reply(
                body=json.dumps({"ok": True, "sandbox_id": name, "path": path, "size": len(request.body)}).encode()
            )
        if (name, path) not in self.files:
            raise RefusedError(ErrorCode.FILE_NOT_FOUND, f"{path}: no such file in sandbox {name}")
        return Reply(body=self.files[name, path])

    def _exec(self, record: SandboxRecord, request: Recorded) -> Reply:
        order = ExecRequest.model_validate_json(request.body)
        if record.state is not SandboxState.RUNNING:
            raise RefusedError(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {record.id} is {record.state}")
        session = self.add_session(record.id, order, request.query.get("session"))
        if not order.stdin and not self.open_session:
            session.finish(*self.program(order, b""))
        events = session.events if "wait_seconds" in request.query else []
        return Reply(201, ExecEvents(session=session.session, events=events).model_dump_json().encode())

    def add_session(self, name: str, order: ExecRequest, key: str | None = None) -> Session:
        """Add a session without events."""
        now = datetime.now(UTC)
        session = ExecSession(
            id=f"exec-{key or f'{len(self.sessions):032x}'}.1.{name}",
            sandbox_id=name,
            generation=1,
            command=order.command,
            status=ExecStatus.RUNNING,
            stdin_open=order.stdin,
            created_at=now,
            updated_at=now,
        )
        self.sessions[session.id] = Session(session, order)
        return self.sessions[session.id]

    def _session(self, name: str, verb: str, request: Recorded) -> Reply:
        if name not in self.sessions:
            raise RefusedError(ErrorCode.EXEC_NOT_FOUND, f"there is no session {name}")
        session = self.sessions[name]
        after = int(request.query.get("after", "0"))
        if verb == "stream":
            return Reply(chunks=session.lines(after))
        if verb == "events":
            events = [event for event in session.events if event.sequence > after]
            return Reply(body=ExecEvents(session=session.session, events=events).model_dump_json().encode())
        if verb == "signal":
            session.signals.append(request.json()["signal"])
            session.finish([], 128 + session.signals[-1], signal=session.signals[-1])
        if verb in ("stdin", "close-stdin"):
            self._stdin(session, verb, request)
        return Reply(body=json.dumps({"session": session.session.model_dump(mode="json")}).encode())

    def _stdin(self, session: Session, verb: str, request: Recorded) -> None:
        if session.session.status is not ExecStatus.RUNNING:
            return
        if not session.session.stdin_open:
            raise RefusedError(ErrorCode.STDIN_CLOSED, "the process takes no input")
        given = StdinRequest.model_validate_json(request.body) if verb == "stdin" else StdinRequest(eof=True)
        session.stdin += given.to_bytes()
        if given.eof:
            session.finish(*self.program(session.request, session.stdin))


def sandbox_record(spec: SandboxSpec, **changes: Any) -> SandboxRecord:
    """Return the record of a running sandbox with that spec."""
    now = datetime.now(UTC)
    return SandboxRecord(
        id=spec.id,
        generation=1,
        image=spec.image,
        labels=spec.labels,
        spec=RecordedSpec.of(spec, spec.id),
        spec_hash=spec.sha256(),
        state=SandboxState.RUNNING,
        runtime="runsc",
        isolation="gvisor",
        node_id="node-1",
        operation_id="op-1",
        created_at=now,
        updated_at=now,
    ).model_copy(update=changes)


def _envelope(record: SandboxRecord, status: int = 200) -> Reply:
    return Reply(status, SandboxEnvelope(sandbox=record).model_dump_json().encode())
