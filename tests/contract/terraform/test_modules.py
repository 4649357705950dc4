"""Terraform's own checks of the modules, offline."""

import subprocess

import pytest

from tests.contract.terraform.conftest import Workspace

MODULES = ("modules/render", "modules/hetzner", "examples/hetzner", "examples/ucloud")
# Many starts of Terraform and of the stand-in, on a machine that may be busy.
pytestmark = pytest.mark.timeout(300)


def told(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def test_the_files_have_their_one_format(workspace: Workspace) -> None:
    done = workspace.terraform(".", "fmt", "-check", "-recursive", "-diff")
    assert done.returncode == 0, told(done)


@pytest.mark.parametrize("module", MODULES)
def test_it_is_valid(workspace: Workspace, module: str) -> None:
    workspace.ready(module)
    done = workspace.terraform(module, "validate", "-no-color")
    assert done.returncode == 0, told(done)


@pytest.mark.parametrize("module", MODULES)
def test_its_own_tests_pass(workspace: Workspace, module: str) -> None:
    workspace.ready(module)
    done = workspace.terraform(module, "test", "-no-color")
    assert done.returncode == 0, told(done)
    assert " passed, 0 failed." in done.stdout, told(done)
