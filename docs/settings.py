"""Write the settings tables of operations.md from the settings classes, so that each default stands in one place.

``python docs/settings.py`` (or ``make docs``) rewrites them; a test fails when they are out of date.
"""

import ast
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "operations.md"
SOURCES: Final = {
    "gateway": "gateway/settings.py",
    "policy": "gateway/core/policy.py",
    "node": "node_agent/settings.py",
    "autoscaler": "autoscaler/settings.py",
    "local": "providers/local/provider.py",
}


def tables(source: str) -> str:
    """Return the tables of all settings classes of one module, in its order."""
    tree = ast.parse(source)
    constants = {
        node.target.id: node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    classes = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and fields(node)
    ]
    return "\n".join(table(node, constants, named=len(classes) > 1) for node in classes)


def fields(node: ast.ClassDef) -> list[tuple[ast.AnnAssign, str]]:
    """Return each annotated field with the docstring below it."""
    found: list[tuple[ast.AnnAssign, str]] = []
    for statement, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and _is_setting(statement):
            explained = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            text = str(below.value.value) if explained else ""  # type: ignore[union-attr]
            found.append((statement, " ".join(text.split())))
    return found


def _is_setting(statement: ast.AnnAssign) -> bool:
    private = ast.unparse(statement.target).startswith("_")
    return not private and not ast.unparse(statement.annotation).startswith("ClassVar")


def table(node: ast.ClassDef, constants: dict[str, ast.expr], *, named: bool) -> str:
    """Return one class as a table, with its docstring above it if the module has several."""
    title = (ast.get_docstring(node) or node.name).splitlines()[0].replace("``", "`")
    lines = [f"{title}\n"] if named else []
    lines += ["| setting | default | what |", "|---|---|---|"]
    for field, text in fields(node):
        what = text.replace("``", "`").replace("|", "\\|")
        lines.append(f"| `{ast.unparse(field.target)}` | {default(field.value, constants)} | {what} |")
    return "\n".join(lines) + "\n"


def default(value: ast.expr | None, constants: dict[str, ast.expr]) -> str:
    """Return the default as a reader would write it; empty if there is none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
        keywords = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default_factory" in keywords:
            return ""
        value = keywords.get("default", value.args[0] if value.args else None)
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Path":
        value = value.args[0]
    if isinstance(value, ast.Name):
        value = constants.get(value.id, value)
    if value is None or ast.unparse(value) in {"None", "...", "()", "{}", "''"}:
        return ""
    text = ast.unparse(ast.List(value.elts, ast.Load()) if isinstance(value, ast.Tuple) else value)
    if text.startswith("limits."):
        text = str(getattr(_limits(), text.removeprefix("limits.")))
    elif isinstance(value, ast.Attribute):  # a member of an enum, whose value is its name in lower case
        text = value.attr.lower()
    return f"`{text.strip(chr(39))}`"


def _limits() -> object:
    sys.path.insert(0, str(ROOT))
    from gateway.wire import limits

    return limits


def rendered(page: str) -> str:
    """Return the page with new tables."""
    for name, source in SOURCES.items():
        block = f"<!-- settings: {name} -->\n{tables((ROOT / source).read_text())}<!-- end -->"
        pattern = rf"<!-- settings: {name} -->\n.*?<!-- end -->"
        page = re.sub(pattern, block.replace("\\", r"\\"), page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
