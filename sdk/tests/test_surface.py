"""The public names, their documentation, and what the package may import."""

import ast
import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import ucloud_sandboxes_sdk as sdk
from tests.fakes.gateway import TOKEN, Gateway

SOURCE = Path(sdk.__file__).parent
EXAMPLE = SOURCE.parents[2] / "examples" / "hello.py"


def public_callables() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name in sdk.__all__:
        value = getattr(sdk, name)
        if inspect.isclass(value):
            ours = [each for each in value.__mro__ if each.__module__.startswith(sdk.__name__)]
            members = [(k, v) for each in ours for k, v in vars(each).items() if not k.startswith("_")]
            found += [(f"{name}.{k}", v) for k, v in members if callable(v) or isinstance(v, property | classmethod)]
        if callable(value):
            found.append((name, value))
    return found


@pytest.mark.parametrize(
    ("name", "value"), public_callables(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_public_name_is_documented(name: str, value: object) -> None:
    assert inspect.getdoc(value), name


def test_exports_are_sorted_and_exist() -> None:
    assert all(hasattr(sdk, name) for name in sdk.__all__)
    assert len(set(sdk.__all__)) == len(sdk.__all__)


def test_it_needs_nothing_but_urllib3() -> None:
    imported = set()
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"urllib3"}


def test_importing_it_loads_no_server() -> None:
    code = "import sys, ucloud_sandboxes_sdk; print([m for m in ('gateway','pydantic','fastapi') if m in sys.modules])"
    path = str(SOURCE.parent)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_example_in_the_repository_runs_against_any_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    with Gateway() as gateway:
        gateway.program = lambda request, stdin: ([("stdout", b"hello\n")], 0)
        monkeypatch.setenv("UCLOUD_SANDBOX_URL", gateway.url)
        monkeypatch.setenv("UCLOUD_SANDBOX_API_TOKEN", TOKEN)
        runpy.run_path(str(EXAMPLE))
        assert [request.method for request in gateway.requests] == ["POST", "POST", "DELETE"]
        assert gateway.sandboxes == {}


SNIPPET = """
from ucloud_sandboxes_sdk import Image, SandboxClient
image = Image.from_registry("busybox")
client = SandboxClient("http://localhost")
client.create_sandbox(image=image, memory_mb=64, gpus="all", security={"user": "0"}, ttl_seconds=None)
client.create_sandbox(image=image, memory=64)
client.create_sandbox(image=image, memory_mb="64")
client.exec("box", ["true"], timeout=3)
"""
WRONG_LINES = [6, 7, 8]


def test_type_checkers_refuse_misspelt_fields(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(file)]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path)],  # one cache serves one set of options
        env={"MYPYPATH": str(SOURCE.parent), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert found == WRONG_LINES, done.stdout + done.stderr
