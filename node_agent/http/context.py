"""What all routes share: where the agent's parts are found, and how bodies are read and answered."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import Receive

from gateway.wire.errors import ErrorCode, FieldError
from node_agent.errors import ApiError
from node_agent.exec.sessions import Sessions
from node_agent.files.transfer import Transfers
from node_agent.runtime.base import RuntimeFailure
from node_agent.sandboxes.manager import Registry

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

MAX_GENERATION = 2**63 - 1
Generation = Annotated[int | None, Query(ge=1, le=MAX_GENERATION)]


@dataclass(frozen=True)
class Parts:
    """The agent's parts, as the routes use them."""

    registry: Registry
    sessions: Sessions
    transfers: Transfers
    executor: Executor
    """For short blocking work: reading spools, asking engines."""


def parts(request: Request) -> Parts:
    """The parts of the app that serves this request."""
    found: Parts = request.app.state.parts
    return found


PartsOf = Annotated[Parts, Depends(parts)]


def body(model: type[Model]) -> Any:
    """A dependency that reads the body as ``model``, straight from its JSON, in the wire's strict way."""

    async def read(request: Request) -> Model:
        content = await request.body()
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            raise invalid(error.errors(include_url=False, include_context=False, include_input=False)) from error

    return Depends(read)


def invalid(problems: list[Any]) -> ApiError:
    """A 422 that names every field that was refused."""
    fields = [FieldError(field=".".join(str(part) for part in p["loc"]), problem=p["msg"]) for p in problems]
    sentence = "; ".join(f"{f.field}: {f.problem}" if f.field else f.problem for f in fields[:5])
    return ApiError(ErrorCode.INVALID_REQUEST, f"the request was refused: {sentence}", fields=fields)


def answer(model: BaseModel, status: int = 200) -> Response:
    """A model as a response, serialised once."""
    return Response(model.model_dump_json(), status, media_type="application/json")


async def settled(future: "Future[T]") -> T:
    """The future's result.  A caller that leaves does not stop the work behind it."""
    return await asyncio.shield(asyncio.wrap_future(future))


async def blocking(executor: Executor, sandbox_id: str, call: Callable[[], T]) -> T:
    """The result of a short blocking call, made on the executor.

    Raises:
        ApiError: the engine refused.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, call)
    except RuntimeFailure as failure:
        raise ApiError(failure.code, failure.message, sandbox_id=sandbox_id, reason=failure.reason) from failure


async def disconnected(receive: Receive) -> None:
    """Returns once the client has left; only for requests whose body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass
