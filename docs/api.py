"""Writes openapi.json, and the tables of api.md, from the code, so that each route, code and limit stands in one place.

``python docs/api.py`` (or ``make docs``) rewrites them; a test fails when they are out of date.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs.settings import table  # noqa: E402 - found below the root, which a script does not have on its path
from gateway.app import routes_only  # noqa: E402
from gateway.auth import ACCESS  # noqa: E402
from gateway.openapi import RAW  # noqa: E402
from gateway.wire.errors import CODE_RULES, ErrorCode  # noqa: E402

PAGE: Final = ROOT / "docs" / "api.md"
DOCUMENT: Final = ROOT / "docs" / "openapi.json"
LIMITS: Final = ROOT / "gateway" / "wire" / "limits.py"
WIRE: Final = ROOT / "gateway" / "wire"
# Marker -> (module, class) of the models whose fields the page lists.
MODELS: Final = {
    "spec": ("sandboxes", "SandboxSpec"),
    "security": ("sandboxes", "Security"),
    "filesystem": ("sandboxes", "Filesystem"),
    "exec": ("exec", "ExecRequest"),
    "session": ("exec", "ExecSession"),
    "stdin": ("exec", "StdinRequest"),
    "errorbody": ("errors", "ErrorBody"),
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
    lines = ["| code | status | retryable | what it means |", "|---|---|---|---|"]
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


def model(module: str, name: str) -> str:
    """One row a field of a wire model."""
    tree = ast.parse((WIRE / f"{module}.py").read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return table(found, {}, named=False).replace("| setting |", "| field |").replace("`limits.", "`")


def rendered(page: str, document: dict[str, Any]) -> str:
    """The page with its tables made anew."""
    blocks = {"routes": routes(document), "errors": errors(), "limits": limits()}
    blocks |= {marker: model(*where) for marker, where in MODELS.items()}
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
