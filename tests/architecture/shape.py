"""Measure the code base: how many modules, how large, how they import one another, and how docstrings begin.

``python -m tests.architecture.shape [CHECKOUT]`` prints one line per figure; `test_shape` enforces the limits.
"""

import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("sandboxes", "gateway", "node_agent", "autoscaler", "simulator", "providers", "sdk/src")
SMALL: Final = 80
"""Lines below which a module with a single importer in its package should be merged into that importer."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

# First words of docstrings that begin with a noun or a clause instead of a verb.
NOT_VERBS: Final = frozenset(
    word
    for line in (
        "a all an another any as at because before both by each either every everything for from here how if in it its",
        "like more most must never no nobody none not nothing of on one only or other others our same so some such",
        "that the their them there these they this those to two until what whatever when whenever where wherever",
        "whether which who whoever whose why with without you your",
        "alone around creation digest docker euro gvisor hex home id net output path progress readable room runsc side",
        "somebody ucloud user utc wall",
    )
    for word in line.split()
)
# Imperatives that end in a single or double "s"; any other word that ends in "s" counts as third person ("returns").
PLURALS_THAT_ARE_VERBS: Final = frozenset(
    {"pass", "process", "address", "discuss", "express", "focus", "miss", "guess"}
)


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        path: Path relative to the checkout.
        name: Dotted name by which it is imported.
        text: Its source.
    """

    path: Path
    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """Number of lines, including blank ones and comments."""
        return self.text.count("\n")

    @property
    def package(self) -> str:
        """Package that contains it."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def functions(self) -> Iterator[Function]:
        """All functions and methods, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        """Classes at the top level."""
        return (node for node in self.tree.body if isinstance(node, ast.ClassDef))


def modules(root: Path = ROOT) -> list[Module]:
    """Return all modules of a checkout, sorted by path within each package."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root / "sdk" / "src" if package == "sdk/src" else root).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            found.append(Module(path.relative_to(root), name, path.read_text()))
    return found


def importers(all_modules: list[Module], *, at_import: bool = False) -> dict[str, set[str]]:
    """Map each module's name to the names of the modules that import it.

    Args:
        all_modules: All modules of the checkout.
        at_import: Ignore imports inside functions, which load a module only when it is needed.
    """
    names = {module.name for module in all_modules}
    found: dict[str, set[str]] = defaultdict(set)
    for module in all_modules:
        for node in module.tree.body if at_import else ast.walk(module.tree):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                wanted = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
            else:
                continue
            for name in wanted:
                if name in names and name != module.name:
                    found[name].add(module.name)
    return found


def sections(all_modules: list[Module]) -> list[Module]:
    """Return the small modules whose only importer is in the same package and always loads them."""
    who, always = importers(all_modules), importers(all_modules, at_import=True)
    return [
        module
        for module in all_modules
        if module.path.name != "__init__.py"
        and "migrations" not in module.path.parts
        and module.lines < SMALL
        and len(who[module.name]) == len(always[module.name]) == 1
        and next(iter(who[module.name])).rpartition(".")[0] == module.package
    ]


def files_per_folder(all_modules: list[Module]) -> Counter[Path]:
    """Count the modules in each folder, without ``__init__``."""
    return Counter(module.path.parent for module in all_modules if module.path.name != "__init__.py")


def shared_class_names(all_modules: list[Module]) -> dict[str, list[Path]]:
    """Map each public class name that several modules define to these modules."""
    found: dict[str, list[Path]] = defaultdict(list)
    for module in all_modules:
        for node in module.classes:
            if not node.name.startswith("_"):
                found[node.name].append(module.path)
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def untyped_results(all_modules: list[Module]) -> list[str]:
    """Return the public functions and methods that return ``dict[str, Any]``, as ``path:name``."""
    return [
        f"{module.path}:{function.name}"
        for module in all_modules
        for function in module.functions
        if function.returns is not None
        and "dict[str, Any]" in ast.unparse(function.returns)
        and not function.name.startswith("_")
    ]


def begins_with_a_verb(docstring: str) -> bool:
    """Return whether a docstring appears to begin with a verb in the imperative."""
    first = docstring.split()[0].rstrip(".,:;").lower()
    third_person = first.endswith("s") and not first.endswith("ss")
    return first.replace("-", "").isalpha() and first not in NOT_VERBS and not third_person


def is_property(function: Function) -> bool:
    """Return whether a function is a property, whose docstring may begin with a noun."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
    return bool(names & {"property", "cached_property", "setter", "abstractproperty"})


def docstrings(all_modules: list[Module]) -> list[tuple[str, str]]:
    """Return ``(path:line, docstring)`` of all functions that have one.

    Properties (their docstrings begin with nouns), tests (they state what holds) and ``__init__`` are left out.
    """
    found = []
    for module in all_modules:
        for function in module.functions:
            text = ast.get_docstring(function)
            named = function.name == "__init__" or function.name.startswith("test_")
            if text and not named and not is_property(function):
                found.append((f"{module.path}:{function.lineno}", text))
    return found


def figures(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each figure's name and value."""
    found = modules(root)
    sizes = sorted(module.lines for module in found)
    filled = [size for size in sizes if size > 1]  # leave out each __init__ that is only a docstring
    folder, files = files_per_folder(found).most_common(1)[0]
    texts = docstrings(found)
    verbs = sum(begins_with_a_verb(text) for _, text in texts)
    yield "modules", str(len(found))
    yield "lines", str(sum(sizes))
    yield (
        "lines per module: median / p90 / max",
        f"{statistics.median(filled):.0f} / {filled[len(filled) * 9 // 10]} / {sizes[-1]}",
    )
    yield f"modules under {SMALL} lines with one importer, in the same package", str(len(sections(found)))
    yield "most modules in a folder", f"{files} ({folder})"
    yield "class names that several modules define", str(len(shared_class_names(found)))
    yield "public functions that return dict[str, Any]", str(len(untyped_results(found)))
    yield "docstrings of functions that begin with a verb", f"{verbs} of {len(texts)} ({verbs / len(texts):.0%})"


if __name__ == "__main__":
    for name, value in figures(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT):
        print(f"{name:70} {value}")
