"""Limits on the code base: sizes, unique class names, typed results, and docstrings that begin with a verb."""

import ast

from tests.architecture.shape import (
    Function,
    begins_with_a_verb,
    docstrings,
    files_per_folder,
    modules,
    sections,
    shared_class_names,
    untyped_results,
)

MODULE_LINES = 500
FUNCTION_LINES = 40
MOST_MODULES = 305  # 290, and room for disk reserves, leases and what tells deaths apart
MOST_IN_A_FOLDER = 20
MOST_SHARED_NAMES = 10
MODULES = modules()


def lines_of_code(function: Function) -> int:
    """Count the lines from ``def`` to the end, without the docstring."""
    first = function.body[0]
    explained = 0
    if ast.get_docstring(function, clean=False) is not None:
        explained = (first.end_lineno or first.lineno) - first.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - explained


def test_no_module_is_too_long() -> None:
    long = [f"{module.path}: {module.lines}" for module in MODULES if module.lines > MODULE_LINES]
    assert not long, f"modules over {MODULE_LINES} lines: split them"


def test_no_function_is_too_long() -> None:
    long = [
        f"{module.path}:{function.lineno} {function.name}"
        for module in MODULES
        if "migrations" not in module.path.parts  # a migration lists tables; there is nothing to split
        for function in module.functions
        if lines_of_code(function) > FUNCTION_LINES
    ]
    assert not long, f"functions over {FUNCTION_LINES} lines"


def test_no_module_belongs_in_its_only_importer() -> None:
    assert not [str(module.path) for module in sections(MODULES)], (
        "small, with a single importer in the same package: merge them"
    )


def test_there_are_few_modules_and_no_crowded_folder() -> None:
    assert len(MODULES) <= MOST_MODULES
    crowded = {str(folder): count for folder, count in files_per_folder(MODULES).items() if count > MOST_IN_A_FOLDER}
    assert not crowded, f"over {MOST_IN_A_FOLDER} modules in one folder"


def test_class_names_are_unique() -> None:
    shared = shared_class_names(MODULES)
    assert len(shared) <= MOST_SHARED_NAMES, {name: [str(path) for path in paths] for name, paths in shared.items()}


def test_results_are_typed() -> None:
    # These are JSON by nature: OpenAPI, configurations of OCI and Docker, and the interface of hcloud's transport.
    json_by_nature = ("openapi", "http/app.py", "oci_bundle", "docker_engine/", "hetzner/client.py")
    untyped = [name for name in untyped_results(MODULES) if not any(part in name for part in json_by_nature)]
    assert not untyped, "public functions that return dict[str, Any]: give the result a type"


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    others = [
        f"{place}: {text.split(chr(10))[0]}" for place, text in docstrings(MODULES) if not begins_with_a_verb(text)
    ]
    assert not others


def test_every_module_has_a_docstring() -> None:
    silent = [str(module.path) for module in MODULES if module.tree.body and not ast.get_docstring(module.tree)]
    assert not silent


def test_lines_of_code_exclude_the_docstring() -> None:
    (function,) = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n').body
    assert isinstance(function, Function)
    assert lines_of_code(function) == 2


def test_verbs_are_distinguished_from_nouns() -> None:
    assert begins_with_a_verb("Return the id.")
    assert begins_with_a_verb("Pass it on.")
    for noun in ("The id.", "Whether it runs.", "Returns the id.", "``id`` of it.", "What is left."):
        assert not begins_with_a_verb(noun), noun
