"""A module fits in a reader's head and a function on a screen."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sandboxes", "gateway", "node_agent", "autoscaler", "simulator", "providers", "sdk/src")
MODULE_LINES = 500
FUNCTION_LINES = 40
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# A migration lists tables from top to bottom; there is nothing in it to take apart.
MIGRATIONS = "migrations/versions"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def lines_of_code(function: Function) -> int:
    """Lines from ``def`` to the end, without the docstring: explaining is free."""
    first = function.body[0]
    explained = 0
    if ast.get_docstring(function, clean=False) is not None:
        explained = (first.end_lineno or first.lineno) - first.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - explained


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_and_functions_keep_their_size(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MODULE_LINES, f"{path} is about more than one thing: split it"
    long = {f.name: lines_of_code(f) for f in functions(ast.parse(text)) if lines_of_code(f) > FUNCTION_LINES}
    assert not long or MIGRATIONS in str(path), f"{path}: functions over {FUNCTION_LINES} lines: {long}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_why_it_exists(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not tree.body or ast.get_docstring(tree), f"{path} has no docstring"


def test_a_function_without_its_docstring_is_counted() -> None:
    (function,) = functions(ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n'))
    assert lines_of_code(function) == 2
