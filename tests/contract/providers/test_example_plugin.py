"""The example plugin as its author has it: built from its folder, installed, found by entry point, put to the suite."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from providers.testing.contract import ProviderContract

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "provider-plugin"
FILES = ("pyproject.toml", "sandbox_fleet_ledger.py", "tests/test_ledger.py")
NOT_ITS_KIND = 3  # tests for clouds whose names are not unique
FOUND = """
from providers import registry
found = registry.load("ledger")
print(found.__module__, [entry.dist.name for entry in registry.installed() if entry.name == "ledger"])
"""


def done(*command: str, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed, and return its output."""
    ran = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the example's files, and of nothing else."""
    made = tmp_path_factory.mktemp("plugin")
    for name in FILES:
        (made / name).parent.mkdir(exist_ok=True)
        shutil.copy(EXAMPLE / name, made / name)
    return made


@pytest.fixture(scope="module")
def path(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a search path with the plugin's wheel installed on it, without the network."""
    out = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    done(*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(out), ".", cwd=folder)
    (wheel,) = out.glob("*.whl")
    done(*pip, "install", "--no-index", "--no-deps", "--target", str(out / "site"), str(wheel), cwd=folder)
    return f"{out / 'site'}{os.pathsep}{ROOT}"


def test_it_is_found_by_its_entry_point(folder: Path, path: str) -> None:
    said = done(sys.executable, "-P", "-c", FOUND, cwd=folder, PYTHONPATH=path)
    assert said.strip() == "sandbox_fleet_ledger ['sandbox-fleet-ledger']"


def test_it_passes_the_suite(folder: Path, path: str, tmp_path: Path) -> None:
    pytest_ = (sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    said = done(*pytest_, f"--basetemp={tmp_path / 'inner'}", "tests", cwd=folder, PYTHONPATH=path)
    tests = sum(name.startswith("test_") for name in dir(ProviderContract))
    ended = re.match(r"(\d+) passed, (\d+) skipped in ", said.strip().splitlines()[-1])
    assert ended is not None, said
    assert int(ended[1]) + int(ended[2]) >= tests, said
    assert int(ended[2]) == NOT_ITS_KIND, said


def test_it_has_fewer_than_a_hundred_lines() -> None:
    assert len((EXAMPLE / FILES[1]).read_text().splitlines()) < 100


def test_the_page_for_authors_shows_these_files() -> None:
    page = (ROOT / "docs" / "providers" / "README.md").read_text()
    for name in FILES:
        assert (EXAMPLE / name).read_text() in page, f"docs/providers/README.md shows another {name}"
