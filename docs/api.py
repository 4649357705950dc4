"""Writes openapi.json, and the tables of api.md, from the code: each route, field, value, code and limit has one place.

``python docs/api.py`` (or ``make docs``) rewrites them; a test fails when they are out of date.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, get_args

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs.settings import fields  # noqa: E402 - found below the root, which a script does not have on its path
from gateway.http.app import routes_only  # noqa: E402
from gateway.http.auth import ACCESS  # noqa: E402
from gateway.http.openapi import RAW  # noqa: E402
from gateway.wire import capacity, exec, nodes, resources, sandboxes, tokens  # noqa: E402
from gateway.wire import errors as wire_errors  # noqa: E402
from gateway.wire.base import WireModel, WireRequest  # noqa: E402
from gateway.wire.errors import CODE_RULES, ErrorCode  # noqa: E402
from gateway.wire.states import DeathReason, ExecStatus, NodeState, SandboxState  # noqa: E402

PAGE: Final = ROOT / "docs" / "api.md"
DOCUMENT: Final = ROOT / "docs" / "openapi.json"
LIMITS: Final = ROOT / "gateway" / "wire" / "limits.py"
# Marker -> the models whose fields the page lists there.
MODELS: Final[dict[str, tuple[type[WireModel], ...]]] = {
    "errorbody": (wire_errors.ErrorBody, wire_errors.FieldError),
    "spec": (sandboxes.SandboxSpec, sandboxes.Security, sandboxes.Filesystem, sandboxes.Ssh),
    "record": (sandboxes.SandboxEnvelope, sandboxes.SandboxRecord, sandboxes.SandboxList, sandboxes.DeleteAnswer),
    "facts": (sandboxes.LogChunk, sandboxes.Usage),
    "exec": (exec.ExecRequest,),
    "session": (exec.ExecEvents, exec.ExecEnvelope, exec.StreamLine, exec.ExecSession, exec.ExecEvent),
    "stdin": (exec.StdinRequest, exec.SignalRequest),
    "file": (exec.PutFileAnswer,),
    "prepare": (
        capacity.PrepareRequest,
        capacity.PrepareAnswer,
        capacity.PreparedList,
        capacity.PrepareDeleted,
        capacity.PreparedCapacity,
        resources.Shape,
    ),
    "builders": (
        capacity.BuilderPrepareRequest,
        capacity.BuilderPrepareAnswer,
        capacity.PreparedBuilderList,
        capacity.BuilderPrepareDeleted,
        capacity.PreparedBuilders,
    ),
    "demand": (capacity.Demand, capacity.WaitingSandbox, capacity.Ceilings, capacity.PoolCeiling),
    "nodes": (
        nodes.NodeList,
        nodes.NodeEnvelope,
        nodes.NodeRecord,
        nodes.RuntimeReport,
        nodes.Pressure,
        nodes.BootStages,
        nodes.DrainRequest,
        nodes.JoinTokenRequest,
        nodes.JoinToken,
    ),
    "tokens": (tokens.TokenRequest, tokens.TokenCreated, tokens.TokenList, tokens.TokenRecord),
}
# Sent without the keys that have no value; every other answer carries them as null.
SPARSE: Final = {wire_errors.ErrorBody, exec.StreamLine}
# Name -> value -> what it means; ``values`` refuses a list that is not the code's.
VALUES: Final[dict[str, tuple[Iterable[str], dict[str, str]]]] = {
    "SandboxState": (
        SandboxState,
        {
            "pending": "accepted; waits for room",
            "creating": "a node was chosen and told, also by a restart",
            "running": "its first process runs: execs and files work",
            "paused": "all its processes are frozen; an exec, input or a file thaws them",
            "checkpointed": "stored on disk; reserved, no call leads there today",
            "restoring": "comes back from a checkpoint; reserved, no call leads there today",
            "exited": "its first process ended by itself; `restart` starts it anew",
            "failed": "it never ran, or something killed it; `reason` and `detail` say what",
            "lost": "its node is gone, or took it away; it can only be deleted",
            "deleting": "to be removed; wins over everything in flight",
            "deleted": "gone; the record can be read for a day, and the id used again",
        },
    ),
    "DeathReason": (
        DeathReason,
        {
            "exited": "its first process ended by itself",
            "oom": "its processes together took more than `memory_mb`",
            "ttl": "`ttl_seconds` ran out",
            "idle": "`idle_seconds` ran out",
            "deleted": "somebody deleted it",
            "disk_full": "a disk was full; `detail` says which",
            "image_error": "the image cannot be had or used",
            "start_error": "it could not be started",
            "node_lost": "its node gave no sign of life for `LOST_AFTER` seconds, or was removed",
            "evicted": "its container was taken away or its engine killed by hand, or it never found room",
        },
    ),
    "Network": (get_args(sandboxes.Network), {"none": "loopback only", "bridge": "the internet over IPv4"}),
    "RuntimeName": (get_args(sandboxes.RuntimeName), {"runsc": "gVisor by itself", "docker": "the Docker engine"}),
    "Isolation": (
        get_args(sandboxes.Isolation),
        {
            "gvisor": "a kernel of its own in user space, between the sandbox and the node's",
            "runc": "an ordinary container on the node's kernel",
        },
    ),
    "ExecStatus": (
        ExecStatus,
        {
            "running": "the process runs, or is about to",
            "exited": "it ended by itself, whatever its exit code; final",
            "failed": "it could not be started, its timeout killed it, or its end could not be seen; final",
        },
    ),
    "Stream": (
        get_args(exec.Stream),
        {
            "status": "`data` is `started`: the process runs",
            "stdout": "output",
            "stderr": "output",
            "stdin_closed": "no more input will come",
            "truncated": "output from here on is counted and not stored; `data` says why",
            "error": "`data` says what went wrong",
            "exit": "the last event; `exit_code` is the session's",
        },
    ),
    "NodeState": (
        NodeState,
        {
            "ready": "takes sandboxes",
            "draining": "takes nothing new; what runs goes on",
            "unreachable": "its heartbeats are late: nothing new is placed there",
            "lost": "its heartbeats are so late that its sandboxes were given up",
            "gone": "removed; no longer listed",
        },
    ),
    "TokenScope": (
        tokens.TokenScope,
        {
            "client": "works with sandboxes, and asks for capacity ahead",
            "operator": "may do everything",
            "node": "one node's own; made by registration only",
        },
    ),
}
MEANINGS: Final[dict[ErrorCode, str]] = {
    ErrorCode.UNAUTHORIZED: "no token, or one that is unknown, expired or revoked",
    ErrorCode.FORBIDDEN: "the token's scope does not cover this route, or it is another node's credential",
    ErrorCode.NOT_FOUND: "no such path, or no such token",
    ErrorCode.METHOD_NOT_ALLOWED: "the path has no such method; `Allow` lists those it has",
    ErrorCode.INVALID_REQUEST: "the body or the query string was refused; `fields` names each part",
    ErrorCode.PAYLOAD_TOO_LARGE: "the body is larger than its route takes",
    ErrorCode.UNSUPPORTED: "understood, but nothing here can do it",
    ErrorCode.SANDBOX_NOT_FOUND: "no sandbox has this id",
    ErrorCode.SANDBOX_NOT_RUNNING: "it is there, but no process of it runs; `state` and `reason` tell why",
    ErrorCode.SPEC_CONFLICT: "the id is taken by a sandbox with another spec",
    ErrorCode.CONFLICT: "something else is happening to it just now, or something newer is there",
    ErrorCode.NEVER_FITS: "no node, present or possible, has room for this shape; see `maximum_resources`",
    ErrorCode.CAPACITY: "the chosen machine lacks something that the spec asks for, such as a GPU",
    ErrorCode.NO_ROOM: "no node has room now; it waits, counts as demand, and the same create asks again",
    ErrorCode.CREATE_IN_PROGRESS: "the create goes on; the same create asks again",
    ErrorCode.IMAGE_ERROR: "the image cannot be had or used",
    ErrorCode.START_ERROR: "the sandbox could not be started",
    ErrorCode.EXEC_NOT_FOUND: "no such session, or it ended too long ago",
    ErrorCode.EXEC_LOST: "the session belonged to an earlier generation, or its end cannot be known",
    ErrorCode.EXEC_LIMIT: "the node runs as many execs as it may",
    ErrorCode.STDIN_CLOSED: "the session takes no input: it was started without `stdin`, or its input was ended",
    ErrorCode.FILE_NOT_FOUND: "no such file in the sandbox",
    ErrorCode.IS_DIRECTORY: "the path is a directory",
    ErrorCode.NOT_A_DIRECTORY: "a part of the path is no directory",
    ErrorCode.FILE_PERMISSION: "the sandbox's user may not do that to the file",
    ErrorCode.DISK_FULL: "the disk of the sandbox, the node or the gateway is full; the sentence says which",
    ErrorCode.NODE_NOT_FOUND: "no node has this id",
    ErrorCode.NODE_UNREACHABLE: "the node gives no answer; where the outcome is not known, it is not retryable",
    ErrorCode.NODE_REFUSED: "the node takes nothing now",
    ErrorCode.TOKEN_USED: "the join token was used before",
    ErrorCode.BUSY: "too much at once, or shutting down",
    ErrorCode.TIMEOUT: "no answer in time; where the outcome is not known, it is not retryable",
    ErrorCode.INTERNAL: "a bug; the log has more under the request's id",
}


def routes(document: dict[str, Any]) -> str:
    """One row a route: method, path, who may call it, and what it does."""
    lines = ["| method and path | token | what |", "|---|---|---|"]
    for (method, path), access in ACCESS.items():
        operation = document["paths"][path][method.lower()]
        # A raw route has a summary by hand; FastAPI makes one of the function's name, and its docstring says more.
        text = operation["summary"] if path in RAW else operation["description"]
        what = " ".join(text.splitlines()[0].split())
        query = "&".join(f"{p['name']}=" for p in operation.get("parameters", ()) if p["in"] == "query")
        lines.append(f"| `{method} {path}{'?' + query if query else ''}` | {access.value} | {what} |")
    return "\n".join(lines) + "\n"


def errors() -> str:
    """One row a code."""
    lines = ["#### ErrorCode", "", "| code | status | retryable | what it means |", "|---|---|---|---|"]
    for code in ErrorCode:
        rule = CODE_RULES[code]
        lines.append(f"| `{code}` | {rule.status} | {'yes' if rule.retryable else 'no'} | {MEANINGS[code]} |")
    return "\n".join(lines) + "\n"


def limits() -> str:
    """One row a limit, with the comment that stands beside it in the code."""
    from gateway.wire import limits as module

    lines = ["| limit | value | why |", "|---|---|---|"]
    source = LIMITS.read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            text = " ".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
            why = text.partition("  # ")[2].rstrip(" )") if "  # " in text else ""
            value = str(getattr(module, name)).replace("|", "\\|")
            lines.append(f"| `{name}` | `{value}` | {why} |")
    return "\n".join(lines) + "\n"


def models(group: tuple[type[WireModel], ...]) -> str:
    """One table a model, below its name and what it is."""
    return "\n".join(f"#### {model.__name__}\n\n{_cell(_first_line(model))}\n\n{fields_of(model)}" for model in group)


def fields_of(model: type[WireModel]) -> str:
    """One row a field.  Only what is sent to us has defaults that matter: an answer carries every key."""
    asked = issubclass(model, WireRequest)
    schema = model.model_json_schema(mode="validation" if asked else "serialization")
    found = [node for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef)]
    told = {ast.unparse(field.target): text for node in found for field, text in fields(node)}
    lines = (
        ["| field | type | default | what |", "|---|---|---|---|"]
        if asked
        else ["| field | type | what |", "|---|---|---|"]
    )
    for name, part in schema["properties"].items():
        kind = type_of(part)
        cells = [f"`{name}`", kind.replace("`null`", "absent") if model in SPARSE else kind]
        if asked:
            cells.append(_default(part, required=name in schema.get("required", ())))
        lines.append(f"| {' | '.join([*cells, _cell(told[name])])} |")
    return "\n".join(lines) + "\n"


def type_of(part: dict[str, Any]) -> str:
    """A JSON schema in words: the type, and what its values are held to."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in part:
        return " or ".join(type_of(choice) for choice in part["anyOf"])
    if "const" in part or "enum" in part:
        return " or ".join(f"`{value if isinstance(value, str) else json.dumps(value)}`" for value in _listed(part))
    match part["type"]:
        case "array":
            return f"list of {type_of(part['items'])}{_range(part, 'minItems', 'maxItems', ' entries')}"
        case "object":
            value = type_of(part["additionalProperties"])
            return f"map of string to {value}{_range(part, 'minProperties', 'maxProperties', ' entries')}"
        case "string" if part.get("format") == "date-time":
            return "time"
        case "string":
            pattern = f" matching `{_escaped(part['pattern'])}`" if "pattern" in part else ""
            return f"string{_range(part, 'minLength', 'maxLength', ' characters')}{pattern}"
        case "null":
            return "`null`"
        case kind:
            return f"{kind}{_range(part, 'minimum', 'maximum')}"


def _listed(part: dict[str, Any]) -> list[Any]:
    return [part["const"]] if "const" in part else list(part["enum"])


def _range(part: dict[str, Any], least: str, most: str, unit: str = "") -> str:
    above = f"> {part['exclusiveMinimum']}" if "exclusiveMinimum" in part else ""
    bounds = [above or (f">= {part[least]}" if least in part else ""), f"<= {part[most]}" if most in part else ""]
    told = ", ".join(bound for bound in bounds if bound)
    return f" ({told}{unit})" if told else ""


def _default(part: dict[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    if "default" not in part:
        return "made"
    # A model's defaults are told where the model is.
    value = {} if "$ref" in part and isinstance(part["default"], dict) else part["default"]
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def values() -> str:
    """One table an enumeration.

    Raises:
        ValueError: a value has no meaning here, or a meaning no value.
    """
    tables = []
    for name, (found, meanings) in VALUES.items():
        if list(found) != list(meanings):
            raise ValueError(f"docs/api.py: VALUES[{name!r}] must explain exactly {list(found)}, in this order")
        rows = "".join(f"| `{value}` | {meaning} |\n" for value, meaning in meanings.items())
        tables.append(f"#### {name}\n\n| value | what |\n|---|---|\n{rows}")
    return "\n".join(tables)


def _first_line(model: type[WireModel]) -> str:
    return (inspect.getdoc(model) or "").partition("\n")[0]


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("``", "`")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def rendered(page: str, document: dict[str, Any]) -> str:
    """The page with its tables made anew."""
    blocks = {"routes": routes(document), "errors": errors(), "limits": limits(), "values": values()}
    blocks |= {marker: models(group) for marker, group in MODELS.items()}
    for marker, block in blocks.items():
        begin = page.index(f"<!-- {marker} -->\n") + len(f"<!-- {marker} -->\n")
        page = page[:begin] + block + page[page.index("<!-- end -->", begin) :]
    return page


def openapi() -> str:
    """The contract as it is committed."""
    return json.dumps(routes_only().openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(openapi())
    PAGE.write_text(rendered(PAGE.read_text(), json.loads(DOCUMENT.read_text())))
