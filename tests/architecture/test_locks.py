"""The lock files cover what the project asks for, with hashes, on every Python and without naming an index."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from setup.lock import EXTRAS, LOCKS, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {"sandbox-fleet", "sandbox-fleet-sdk"}
PYTHONS = ("3.11", "3.12", "3.13")
ENTRY = re.compile(
    r"^(?P<requirement>[^\s#][^\\\n]*?)\s*\\?\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}\s*\\?\n)*)", re.M
)


def asked(extras: list[str]) -> Iterator[Requirement]:
    """Yield what the project needs with these extras, those of its own that they name included."""
    for text in PROJECT["dependencies"]:
        yield Requirement(text)
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == "sandbox-fleet":
                yield from asked(sorted(requirement.extras))
            elif requirement.name not in OWN:
                yield requirement


def locked(name: str) -> list[tuple[Requirement, int]]:
    """Return the entries of a lock file, each with the number of its hashes."""
    text = (LOCKS / f"{name}.txt").read_text()
    found = [(Requirement(entry["requirement"]), entry["hashes"].count("sha256:")) for entry in ENTRY.finditer(text)]
    assert sum(count for _, count in found) == text.count("sha256:")
    return found


def environment(python: str) -> dict[str, str]:
    return {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_covers_what_the_project_asks_for(name: str, python: str) -> None:
    here = [entry for entry, _ in locked(name) if entry.marker is None or entry.marker.evaluate(environment(python))]
    versions: dict[str, str] = {}
    for entry in here:
        (pin,) = entry.specifier
        assert pin.operator == "=="
        assert canonicalize_name(entry.name) not in versions, f"{entry.name} is locked twice; run: make lock"
        versions[canonicalize_name(entry.name)] = pin.version
    for requirement in asked(EXTRAS[name]):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not locked; run: make lock"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{version} is not {requirement}; run: make lock"
        )


@pytest.mark.parametrize("name", EXTRAS)
def test_every_entry_has_hashes_and_no_index_is_named(name: str) -> None:
    assert [str(entry) for entry, hashes in locked(name) if not hashes] == []
    text = (LOCKS / f"{name}.txt").read_text()
    assert "://" not in text
    assert [str(entry) for entry, _ in locked(name) if entry.url] == []


def test_the_roles_share_one_set_of_versions() -> None:
    pins = {name: {(entry.name, str(entry.specifier)) for entry, _ in locked(name)} for name in EXTRAS}
    assert {name: found - pins["dev"] for name, found in pins.items()} == {name: set() for name in EXTRAS}


def test_the_nodes_lock_is_the_same_for_all_pythons() -> None:
    # pip downloads for another Python than its own, and reads markers by its own.
    assert [str(entry) for entry, _ in locked("node") if entry.marker and "python_" in str(entry.marker)] == []


@pytest.mark.parametrize(
    "path",
    [
        "setup/python.sh",
        "gateway/bundle.py",
        "node_agent/install/install.sh",
        "terraform/modules/render/templates/install.sh.tftpl",
    ],
)
def test_whatever_installs_dependencies_checks_their_hashes(path: str) -> None:
    assert "--require-hashes" in (ROOT / path).read_text()


def test_the_wheel_carries_the_locks_of_the_roles() -> None:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert "sandboxes" in settings["wheel"]["packages"]
    assert {path.stem for path in Path(LOCKS).iterdir()} == set(EXTRAS)
