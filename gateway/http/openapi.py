"""The OpenAPI document: FastAPI's own for its routes, and by hand the raw routes and what holds for all."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.http.auth import ACCESS, RouteAccess
from gateway.http.routes.parameters import FileQuery, QueryModel, StreamQuery
from gateway.wire.errors import ErrorBody
from gateway.wire.exec import PutFileAnswer, StreamLine
from gateway.wire.tokens import TOKEN_HEADER

TITLE: Final = "sandbox-fleet gateway"
DESCRIPTION: Final = """Isolated Linux sandboxes for AI agents on a shared pool of machines.

Every answer other than 2xx is an `ErrorBody`; `retryable` says whether the same call may succeed later unchanged, and
`Retry-After` when. Every answer carries `X-Request-Id`: the caller's own, if it sent one. Unknown keys in bodies and
query strings are refused.
"""

_SECURITY: Final[dict[RouteAccess, list[dict[str, list[str]]]]] = {
    RouteAccess.OPEN: [],
    RouteAccess.CLIENT: [{"bearer": []}, {"token": []}],
    RouteAccess.OPERATOR: [{"bearer": []}, {"token": []}],
    RouteAccess.NODE: [{"bearer": []}],
    RouteAccess.JOIN: [{"bearer": []}],
    RouteAccess.BOOT: [{"bearer": []}],
}
_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "token": {"type": "apiKey", "in": "header", "name": TOKEN_HEADER},
}
_RAW_MODELS: Final = (ErrorBody, PutFileAnswer, StreamLine)


def _ref(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _parameter(name: str, where: str, schema: dict[str, Any], text: str, *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "schema": schema, "description": text}


def _query(model: type[QueryModel]) -> list[dict[str, Any]]:
    """Return the parameters of a query string that a raw route reads itself."""
    found = model.model_json_schema()
    required = found.get("required", [])
    made = []
    for name, schema in found["properties"].items():
        text = schema.pop("description", "")
        schema.pop("title", None)
        made.append(_parameter(name, "query", schema, text, required=name in required))
    return made


_BYTES: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_SANDBOX: Final = _parameter("sandbox_id", "path", {"type": "string"}, "Id of the sandbox.", required=True)
_ERROR: Final = {"description": "Refused", "content": _ref("ErrorBody")}

RAW: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "/v1/sandboxes/{sandbox_id}/files": {
        "get": {
            "tags": ["files"],
            "operationId": "get_file",
            "summary": "Read a whole file, as raw bytes; the answer carries its `Content-Length`.",
            "parameters": [_SANDBOX, *_query(FileQuery)],
            "responses": {"200": {"description": "The file", "content": _BYTES}, "default": _ERROR},
        },
        "put": {
            "tags": ["files"],
            "operationId": "put_file",
            "summary": "Write a whole file, atomically replacing an existing one; missing directories are created.",
            "parameters": [_SANDBOX, *_query(FileQuery)],
            "requestBody": {"required": True, "content": _BYTES},
            "responses": {"200": {"description": "Written", "content": _ref("PutFileAnswer")}, "default": _ERROR},
        },
    },
    "/v1/exec/{session_id}/stream": {
        "get": {
            "tags": ["exec"],
            "operationId": "stream_exec",
            "summary": "Follow a session to its end: one `StreamLine` per line, the last one with the session.",
            "description": "A stream that ends without a final session was cut: continue with `after`.",
            "parameters": [
                _parameter("session_id", "path", {"type": "string"}, "Id of the session.", required=True),
                *_query(StreamQuery),
            ],
            "responses": {
                "200": {
                    "description": "The events",
                    "content": {"application/x-ndjson": {"schema": {"$ref": "#/components/schemas/StreamLine"}}},
                },
                "default": _ERROR,
            },
        }
    },
}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of ``app``."""
    made = get_openapi(title=TITLE, version="1", description=DESCRIPTION, routes=app.routes, tags=_tags())
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in _RAW_MODELS:
        schema = model.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        for name, nested in schema.pop("$defs", {}).items():
            schemas.setdefault(name, nested)
        schemas.setdefault(model.__name__, schema)
    components["securitySchemes"] = _SCHEMES
    for path, operations in RAW.items():
        made["paths"].setdefault(path, {}).update(operations)
    for (method, path), access in ACCESS.items():
        operation = made["paths"][path][method.lower()]
        operation["security"] = _SECURITY[access]
        operation["x-access"] = access.value
    made["paths"] = dict(sorted(made["paths"].items()))
    components["schemas"] = dict(sorted(schemas.items()))
    return made


def _tags() -> list[dict[str, Any]]:
    names = {
        "system": "Health, readiness, and this document.",
        "sandboxes": "Isolated environments.",
        "exec": "Processes in sandboxes.",
        "files": "Files in sandboxes.",
        "nodes": "The machines that sandboxes run on.",
        "capacity": "Demand, prepared capacity, and the ceilings of the pools.",
        "tokens": "Who may call the API.",
        "audit": "Who did what.",
    }
    return [{"name": name, "description": text} for name, text in names.items()]
