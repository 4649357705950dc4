"""The fleet's labels are spelled in one place; copies in other languages are held against it."""

import re
import subprocess
from pathlib import Path

import pytest

from providers import base

ROOT = Path(__file__).parents[3]
KNOWN = {name: value for name, value in vars(base).items() if name.endswith("_LABEL")}
SPELL_THEM = ("providers/base.py", "tests/unit/providers/test_labels.py")
STANDS_ALONE = "terraform/modules/hetzner/sweep.py"
"""Runs on an operator's machine without the package, so it has copies."""
LABEL = re.compile(r"(?<![\w/.-])sandbox-fleet/[a-z][a-z0-9-]*(?![\w/:.-])")
"""A label's key; not a path, nor the name of an image."""


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def spelled_in(name: str) -> set[str]:
    try:
        return set(LABEL.findall((ROOT / name).read_text()))
    except UnicodeDecodeError:
        return set()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("DEPLOYMENT_LABEL", "sandbox-fleet/deployment"),
        ("OPERATION_LABEL", "sandbox-fleet/op"),
        ("POOL_LABEL", "sandbox-fleet/pool"),
        ("ROLE_LABEL", "sandbox-fleet/role"),
        ("SPEC_LABEL", "sandbox-fleet/spec"),
        ("IMAGE_LABEL", "sandbox-fleet/image"),
        ("NAME_LABEL", "sandbox-fleet/name"),
        ("USER_DATA_LABEL", "sandbox-fleet/user-data"),
        ("MANAGED_BY_LABEL", "sandbox-fleet/managed-by"),
    ],
)
def test_a_key_never_changes(name: str, key: str) -> None:
    """Machines that run already carry it: under another key they would be strangers, and run for ever."""
    assert KNOWN[name] == key


def test_every_key_is_held() -> None:
    assert len(KNOWN) == 9
    assert len(set(KNOWN.values())) == len(KNOWN)


def test_python_spells_keys_in_one_place() -> None:
    elsewhere = {name: spelled_in(name) for name in tracked("*.py") if name not in (*SPELL_THEM, STANDS_ALONE)}
    assert {name: keys for name, keys in elsewhere.items() if keys} == {}


def test_copies_outside_python_have_no_typo() -> None:
    unknown = {name: spelled_in(name) - set(KNOWN.values()) for name in tracked()}
    assert {name: keys for name, keys in unknown.items() if keys} == {}


def test_terraform_and_the_init_script_have_the_keys_that_they_need() -> None:
    """Guards the search itself: these files must be among what it finds."""
    assert spelled_in(STANDS_ALONE) == {base.DEPLOYMENT_LABEL, base.OPERATION_LABEL}
    assert {base.DEPLOYMENT_LABEL, base.ROLE_LABEL, base.MANAGED_BY_LABEL} <= spelled_in(
        "terraform/modules/render/locals.tf"
    )
    assert base.USER_DATA_LABEL in spelled_in("autoscaler/templates/ucloud-init.sh")
