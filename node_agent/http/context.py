"""What all routes share: the agent's parts, and how requests are read and answered."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import Receive

from gateway.wire.errors import ErrorCode, FieldError
from node_agent.errors import NodeError, bad_field
from node_agent.exec.sessions import Sessions
from node_agent.files.transfer import Transfers
from node_agent.sandboxes.manager import SandboxManager

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

MAX_INTEGER: Final = 2**63 - 1  # the most that the wire's generations, sequence numbers and offsets can be
Generation = Annotated[int | None, Query(ge=1, le=MAX_INTEGER)]


@dataclass(frozen=True)
class NodeParts:
    """The agent's parts, as the routes use them."""

    sandboxes: SandboxManager
    sessions: Sessions
    transfers: Transfers
    executor: Executor
    """For short blocking work: reading spools, asking engines."""

    async def blocking(self, call: Callable[[], T]) -> T:
        """Return the result of a short blocking call, made on the executor."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, call)


def parts_of(request: Request) -> NodeParts:
    """Return the parts of the app that serves this request."""
    found: NodeParts = request.app.state.parts
    return found


Parts = Annotated[NodeParts, Depends(parts_of)]


def json_body(model: type[Model]) -> Any:
    """Return a dependency that reads the body as ``model``, straight from its JSON, in the wire's strict way."""

    async def read(request: Request) -> Model:
        content = await request.body()
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            raise refused_fields(error.errors(include_url=False, include_context=False, include_input=False)) from error

    return Depends(read)


def refused_fields(problems: list[Any]) -> NodeError:
    """Return the 422 that names every field that was refused.

    Args:
        problems: as pydantic lists them.
    """
    fields = [FieldError(field=".".join(str(part) for part in p["loc"]), problem=p["msg"]) for p in problems]
    sentence = "; ".join(f"{f.field}: {f.problem}" if f.field else f.problem for f in fields[:5])
    return NodeError(ErrorCode.INVALID_REQUEST, f"the request was refused: {sentence}", fields=fields)


def query_integer(request: Request, name: str, *, least: int) -> int | None:
    """Read a whole number from the query of a raw ASGI route; ``None`` where it is not given.

    Raises:
        NodeError: ``INVALID_REQUEST``.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isdecimal() or not least <= int(text) <= MAX_INTEGER:
        raise bad_field(name, f"must be a whole number from {least} up")
    return int(text)


def json_response(model: BaseModel) -> Response:
    """Return a model as a response, serialised once."""
    return Response(model.model_dump_json(), media_type="application/json")


async def shielded(future: "Future[T]") -> T:
    """Return the future's result.  A caller that leaves does not stop the work behind it."""
    return await asyncio.shield(asyncio.wrap_future(future))


async def disconnected(receive: Receive) -> None:
    """Return once the client has left; only for requests whose body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass
