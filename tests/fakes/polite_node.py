"""A node's HTTP API that runs nothing and answers every call in the protocol, for tests that make any call at all."""

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.wire.exec import ExecEnvelope, ExecEvents, ExecSession, PutFileAnswer, StreamLine
from gateway.wire.nodes import InventoryItem, OrderAnswer
from gateway.wire.sandboxes import LogChunk, Usage
from gateway.wire.states import ExecStatus, SandboxState
from tests.fakes.scripted_node import ScriptedNode

JSON = "application/json"
MAX_ECHO = 1024


class PoliteNode(ScriptedNode):
    """The node; each sandbox that it was ordered to run is in `items`, and no session ever has an event."""

    async def _json(self, request: Request) -> Response:
        await request.body()
        parts = request.url.path.split("/")[2:]
        match parts:
            case ["sandboxes", sandbox_id, "pause" | "resume" as order]:
                return self._switch(sandbox_id, SandboxState.PAUSED if order == "pause" else SandboxState.RUNNING)
            case ["sandboxes", _, "logs"]:
                query = request.query_params
                stream = "stderr" if query.get("stream") == "stderr" else "stdout"
                start = int(query.get("offset", "0"))
                return _answer(LogChunk(stream=stream, offset=start, next_offset=start, data="", eof=True))
            case ["sandboxes", _, "usage"]:
                return _answer(Usage(memory_mb=1, cpu_seconds=1, disk_mb=1, pids=1))
            case ["sandboxes", sandbox_id, "exec"]:
                return _answer(ExecEvents(session=_session(sandbox_id), events=[]))
            case ["exec", session_id, *_]:
                return _answer(ExecEnvelope(session=_session(session_id)))
        return JSONResponse({})

    def _switch(self, sandbox_id: str, state: SandboxState) -> Response:
        item: InventoryItem = self.items[sandbox_id].model_copy(update={"state": state})
        self.items[sandbox_id] = item
        return _answer(OrderAnswer(sandbox=item))

    async def _events(self, request: Request) -> Response:
        return _answer(ExecEvents(session=_session(request.path_params["id"]), events=[]))

    async def _stream(self, request: Request) -> Response:
        line = StreamLine(session=_session(request.path_params["id"]))
        return Response(line.model_dump_json() + "\n", media_type="application/x-ndjson")

    async def _files(self, request: Request) -> Response:
        path = request.query_params["path"]
        if request.method == "GET":
            return Response(path.encode()[:MAX_ECHO], media_type="application/octet-stream")
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
        return _answer(PutFileAnswer(sandbox_id=request.path_params["id"], path=path, size=size))


def _answer(model: ExecEvents | ExecEnvelope | OrderAnswer | LogChunk | Usage | PutFileAnswer) -> Response:
    return Response(model.model_dump_json(), media_type=JSON)


def _session(name: str) -> ExecSession:
    now = datetime.now(UTC)
    return ExecSession(
        id=name,
        sandbox_id="box",
        generation=1,
        command=["true"],
        status=ExecStatus.EXITED,
        exit_code=0,
        created_at=now,
        updated_at=now,
    )
