"""One file at a time, raw bytes, streamed.  Raw ASGI, so that nothing is buffered on the way."""

import asyncio

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from gateway.wire.errors import ErrorCode
from gateway.wire.exec import PATH_PARAMETER, PutFileAnswer
from gateway.wire.tenants import own_id
from node_agent.errors import NodeError, bad_field
from node_agent.files.scripts import path_problem
from node_agent.files.transfer import ClientGone, SandboxFile, within_idle
from node_agent.http.context import disconnected, json_response, parts_of, query_integer
from node_agent.sandboxes.pause_gate import Need
from node_agent.sandboxes.waking import hold_awake


class FileTransfer:
    """``PUT`` and ``GET /v1/sandboxes/{sandbox_id}/files?path=&generation=``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; see ASGI."""
        request = Request(scope, receive)
        serve = _upload if request.method == "PUT" else _download
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            sandbox_id, path, generation = _wanted(request)
            hold = await hold_awake(parts_of(request).sandboxes, sandbox_id, generation, Need.FILE)
            try:
                await serve(request, SandboxFile(hold.runtime, sandbox_id, path), noting)
            finally:
                hold.release()
        except NodeError:
            # Once bytes are out the connection is broken off: a short body must not look whole.
            if not started:
                raise
        except ClientGone:
            return


async def _upload(request: Request, target: SandboxFile, send: Send) -> None:
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        raise bad_field("Content-Length", "must be sent: a file that was cut short shows by it")
    size = int(announced)
    more = True

    async def receive() -> bytes:
        nonlocal more
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = bool(message.get("more_body"))
            if piece := message.get("body", b""):
                return bytes(piece)
        return b""

    await parts_of(request).transfers.upload(target, size, receive)
    response = json_response(PutFileAnswer(sandbox_id=own_id(target.sandbox_id), path=target.path, size=size))
    await response(request.scope, request.receive, send)


async def _download(request: Request, target: SandboxFile, send: Send) -> None:
    async with parts_of(request).transfers.download(target) as file:
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(file.size).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(disconnected(request.receive))
        sent = 0
        try:
            async for piece in file.pieces():
                await within_idle(send({"type": "http.response.body", "body": piece, "more_body": True}))
                sent += len(piece)
                if gone.done():  # the server swallows what is sent to nobody
                    raise ClientGone
        finally:
            gone.cancel()
        if sent != file.size:
            raise NodeError(ErrorCode.INTERNAL, f"{target.path!r} became shorter while it was read")
        await send({"type": "http.response.body", "body": b""})


def _wanted(request: Request) -> tuple[str, str, int | None]:
    """Return the sandbox, the path in it, and the generation that is meant."""
    path = request.query_params.get(PATH_PARAMETER, "")
    if (problem := path_problem(path)) is not None:
        raise bad_field(PATH_PARAMETER, problem)
    return request.path_params["sandbox_id"], path, query_integer(request, "generation", least=1)
