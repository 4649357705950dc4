"""Write openapi.json, and the tables of api.md, from the code: each route, field, value, code and limit has one place.

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
from gateway.wire import audit, capacity, exec, nodes, resources, sandboxes, system, tokens, usage  # noqa: E402
from gateway.wire import errors as wire_errors  # noqa: E402
from gateway.wire.base import WireModel, WireRequest  # noqa: E402
from gateway.wire.errors import CODE_RULES, ErrorCode  # noqa: E402
from gateway.wire.states import DeathReason, ExecStatus, NodeState, SandboxState, WaitReason  # noqa: E402

PAGE: Final = ROOT / "docs" / "api.md"
DOCUMENT: Final = ROOT / "docs" / "openapi.json"
LIMITS: Final = ROOT / "gateway" / "wire" / "limits.py"
# Marker -> the models whose fields the page lists there.
MODELS: Final[dict[str, tuple[type[WireModel], ...]]] = {
    "errorbody": (wire_errors.ErrorBody, wire_errors.FieldError),
    "spec": (sandboxes.SandboxSpec, sandboxes.Security, sandboxes.Filesystem, sandboxes.Ssh),
    "record": (
        sandboxes.SandboxEnvelope,
        sandboxes.SandboxRecord,
        sandboxes.RecordedSpec,
        sandboxes.SandboxList,
        sandboxes.DeleteAnswer,
    ),
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
    "audit": (audit.AuditPage, audit.AuditEntry),
    "policy": (system.PolicyAnswer, system.PolicyValue),
    "usage": (usage.UsagePage, usage.UsageItem, usage.UsageAmounts),
}
# Sent without keys that have no value; every other answer carries them as null.
SPARSE: Final = {wire_errors.ErrorBody, exec.StreamLine, audit.AuditEntry}
# Name -> value -> what it means; ``values`` refuses a list that is not the code's.
VALUES: Final[dict[str, tuple[Iterable[str], dict[str, str]]]] = {
    "SandboxState": (
        SandboxState,
        {
            "pending": "accepted; waits for room",
            "creating": "a node was chosen and got the order, also after a restart",
            "running": "its first process runs: execs and files work",
            "paused": "all its processes are frozen; an exec, input or a file thaws them",
            "checkpointed": "stored on disk; reserved, no call leads there today",
            "restoring": "comes back from a checkpoint; reserved, no call leads there today",
            "exited": "its first process ended by itself; `restart` starts it again",
            "failed": "it never ran, or something killed it; `reason` and `detail` say what",
            "lost": "its node is gone, or no longer has it; it can only be deleted",
            "deleting": "to be removed; wins over everything in flight",
            "deleted": "gone; the record can be read for a day, and the id can be used again",
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
            "image_error": "the image cannot be pulled or used",
            "start_error": "it could not be started",
            "node_lost": "its node sent no heartbeat for `LOST_AFTER` seconds, or was removed",
            "evicted": "its container was removed, its engine was killed or crashed, or it never found room",
        },
    ),
    "WaitReason": (
        WaitReason,
        {
            "no_node": "there is no node yet that takes sandboxes",
            "no_engine": "no node that is there runs what the spec asks for, but a pool may bring one",
            "too_large": "every node that is there is too small, but a pool may bring a larger one",
            "no_room": "the nodes that could take it are full, or take nothing now",
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
            "failed": "it could not be started, its timeout killed it, or its end could not be observed; final",
        },
    ),
    "Stream": (
        get_args(exec.Stream),
        {
            "status": "`data` is `started`: the process runs",
            "stdout": "output",
            "stderr": "output",
            "stdin_closed": "no more input will come",
            "truncated": "output from here on is counted but not stored; `data` says why",
            "error": "`data` says what went wrong",
            "exit": "the last event; `exit_code` is the session's",
        },
    ),
    "NodeState": (
        NodeState,
        {
            "ready": "takes sandboxes",
            "draining": "takes nothing new; what runs keeps running",
            "unreachable": "its heartbeats are late: nothing new is placed there",
            "lost": "its heartbeats are so late that its sandboxes count as lost",
            "gone": "removed; no longer listed",
        },
    ),
    "TokenScope": (
        tokens.TokenScope,
        {
            "client": "works with sandboxes, and prepares capacity",
            "operator": "may do everything",
            "node": "one node's own; created by registration only",
        },
    ),
    "AuditActor": (
        audit.AuditActor,
        {
            "client": "a token of scope `client`",
            "operator": "a token of scope `operator`",
            "node": "a node's credential",
            "join": "a machine with an unused join token",
            "nobody": "no token, or one that is not valid",
            "service": "the service itself, by a deadline or a rule",
            "local": "a command on the gateway's machine that used the database directly",
        },
    ),
    "AuditOutcome": (
        audit.AuditOutcome,
        {
            "pending": "in the files only: written before the call takes effect",
            "unknown": "the gateway was killed before it wrote how the call ended, which may have taken effect",
        },
    ),
}
MEANINGS: Final[dict[ErrorCode, str]] = {
    ErrorCode.UNAUTHORIZED: "no token, or one that is unknown, expired or revoked",
    ErrorCode.FORBIDDEN: "the token's scope does not cover this route, or it is another node's credential",
    ErrorCode.QUOTA_EXCEEDED: "the tenant's quota leaves no room; `fields` names limit, use, and where it is set."
    " Retryable, with `Retry-After`, only for creates per second",
    ErrorCode.POLICY_DENIED: "the operator's policy does not allow it; `fields` names each value and what is `allowed`",
    ErrorCode.NOT_FOUND: "no such path, or no such token",
    ErrorCode.METHOD_NOT_ALLOWED: "the path has no such method; `Allow` lists those it has",
    ErrorCode.INVALID_REQUEST: "the body or the query string was refused; `fields` names each part",
    ErrorCode.PAYLOAD_TOO_LARGE: "the body is larger than its route takes",
    ErrorCode.UNSUPPORTED: "understood, but no node here supports it",
    ErrorCode.SANDBOX_NOT_FOUND: "no sandbox has this id",
    ErrorCode.SANDBOX_NOT_RUNNING: "it exists, but none of its processes runs; `state` and `reason` say why",
    ErrorCode.SPEC_CONFLICT: "the id is taken by a sandbox with another spec",
    ErrorCode.CONFLICT: "another operation on it is in progress, or something newer exists",
    ErrorCode.NEVER_FITS: "no node, present or possible, has room for this shape; see `maximum_resources`",
    ErrorCode.CAPACITY: "the chosen machine lacks something that the spec asks for, such as a GPU",
    ErrorCode.NO_ROOM: "no node has room now; it waits and counts as demand; repeat the same create",
    ErrorCode.CREATE_IN_PROGRESS: "the create continues; repeat the same create",
    ErrorCode.IMAGE_ERROR: "the image cannot be pulled or used",
    ErrorCode.START_ERROR: "the sandbox could not be started, or no process in it for a file",
    ErrorCode.EXEC_NOT_FOUND: "no such session, or it ended too long ago",
    ErrorCode.EXEC_LOST: "the session belonged to an earlier generation, or nobody follows its process any more",
    ErrorCode.EXEC_LIMIT: "the node runs as many execs as it may",
    ErrorCode.STDIN_CLOSED: "the session takes no input: it was started without `stdin`, or its input was ended",
    ErrorCode.FILE_NOT_FOUND: "no such file in the sandbox",
    ErrorCode.IS_DIRECTORY: "the path is a directory",
    ErrorCode.NOT_A_DIRECTORY: "a part of the path is not a directory",
    ErrorCode.FILE_PERMISSION: "the sandbox's user lacks the permission",
    ErrorCode.TRANSFER_INTERRUPTED: "the sandbox restarted or ended during an upload or a download",
    ErrorCode.DISK_FULL: (
        "the disk of the sandbox, the node or the gateway is full; the gateway's own is retryable, and refuses no"
        " delete, pause or revocation"
    ),
    ErrorCode.NODE_NOT_FOUND: "no node has this id",
    ErrorCode.NODE_UNREACHABLE: "the node cannot be reached; not retryable if the outcome is unknown",
    ErrorCode.NODE_REFUSED: "the node accepts nothing now",
    ErrorCode.TOKEN_USED: "the join token was used before",
    ErrorCode.BUSY: "too many calls at once, or shutting down",
    ErrorCode.TIMEOUT: "no answer in time; not retryable if the outcome is unknown",
    ErrorCode.INTERNAL: "a bug; the log has more under the request's id",
}


def routes(document: dict[str, Any]) -> str:
    """Return one row per route: method, path, who may call it, and what it does."""
    lines = ["| method and path | token | what |", "|---|---|---|"]
    for (method, path), access in ACCESS.items():
        operation = document["paths"][path][method.lower()]
        # FastAPI derives summaries from the names of functions, whose docstrings say more; raw routes have their own.
        text = operation["summary"] if path in RAW else operation["description"]
        what = " ".join(text.splitlines()[0].split())
        query = "&".join(f"{p['name']}=" for p in operation.get("parameters", ()) if p["in"] == "query")
        lines.append(f"| `{method} {path}{'?' + query if query else ''}` | {access.value} | {what} |")
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Return one row per error code."""
    lines = ["#### ErrorCode", "", "| code | status | retryable | what it means |", "|---|---|---|---|"]
    for code in ErrorCode:
        rule = CODE_RULES[code]
        lines.append(f"| `{code}` | {rule.status} | {'yes' if rule.retryable else 'no'} | {MEANINGS[code]} |")
    return "\n".join(lines) + "\n"


def limits() -> str:
    """Return one row per limit, with its comment in the code."""
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
    """Return one table per model, below its name and description."""
    return "\n".join(f"#### {model.__name__}\n\n{_cell(_first_line(model))}\n\n{fields_of(model)}" for model in group)


def fields_of(model: type[WireModel]) -> str:
    """Return one row per field.  Only requests have defaults that matter: an answer carries every key."""
    asked = issubclass(model, WireRequest)
    schema = model.model_json_schema(mode="validation" if asked else "serialization")
    found = [node for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef)]
    explained = {ast.unparse(field.target): text for node in found for field, text in fields(node)}
    lines = (
        ["| field | type | default | what |", "|---|---|---|---|"]
        if asked
        else ["| field | type | what |", "|---|---|---|"]
    )
    inherited = {name for base in model.__bases__ for name in getattr(base, "model_fields", ())}
    for name, part in schema["properties"].items():
        if name in inherited and name not in explained:
            continue  # it stands with the model that it comes from
        kind = type_of(part)
        cells = [f"`{name}`", kind.replace("`null`", "absent") if model in SPARSE else kind]
        if asked:
            cells.append(_default(part, required=name in schema.get("required", ())))
        lines.append(f"| {' | '.join([*cells, _cell(explained[name])])} |")
    return "\n".join(lines) + "\n"


def type_of(part: dict[str, Any]) -> str:
    """Return a JSON schema in words: the type, and the bounds of its values."""
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
    stated = ", ".join(bound for bound in bounds if bound)
    return f" ({stated}{unit})" if stated else ""


def _default(part: dict[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    if "default" not in part:
        return "generated"
    # A model's defaults are in the table of the model.
    value = {} if "$ref" in part and isinstance(part["default"], dict) else part["default"]
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def values() -> str:
    """Return one table per enumeration.

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
    """Return the page with new tables."""
    blocks = {"routes": routes(document), "errors": errors(), "limits": limits(), "values": values()}
    blocks |= {marker: models(group) for marker, group in MODELS.items()}
    for marker, block in blocks.items():
        begin = page.index(f"<!-- {marker} -->\n") + len(f"<!-- {marker} -->\n")
        page = page[:begin] + block + page[page.index("<!-- end -->", begin) :]
    return page


def openapi() -> str:
    """Return the OpenAPI document in the form in which it is committed."""
    return json.dumps(routes_only().openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(openapi())
    PAGE.write_text(rendered(PAGE.read_text(), json.loads(DOCUMENT.read_text())))
