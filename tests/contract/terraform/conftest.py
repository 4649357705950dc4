"""Copies of `terraform/` that Terraform can work in, offline, and what it takes."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.contract.terraform import stub_provider

ROOT: Final = Path(__file__).resolve().parents[3]
TERRAFORM: Final = ROOT / "terraform"
SECONDS: Final = 280
NO_TERRAFORM: Final = "no terraform program on this machine; what needs none is still tested"


@dataclass(frozen=True)
class Workspace:
    """A copy of `terraform/`, with a mirror that holds nothing but the schema of hcloud."""

    path: Path
    environment: Mapping[str, str]

    def terraform(self, module: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs Terraform in one module; ``more`` are variables of its environment."""
        return subprocess.run(
            ["terraform", *words],
            cwd=self.path / module,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def ready(self, module: str) -> None:
        """Runs ``init``."""
        done = self.terraform(module, "init", "-no-color", "-input=false")
        assert done.returncode == 0, done.stdout + done.stderr

    def rendered(self, name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs of the render module for these variables, applied in a copy of it, ``name``, with its own state."""
        module = f"rendered/{name}"
        shutil.copytree(self.path / "modules" / "render", self.path / module)
        values = self.path / module / "values.json"
        values.write_text(json.dumps(variables))
        self.ready(module)
        for words in (
            ("apply", "-no-color", "-auto-approve", "-input=false", f"-var-file={values}"),
            ("output", "-json"),
        ):
            done = self.terraform(module, *words)
            assert done.returncode == 0, done.stdout + done.stderr
        return {output: item["value"] for output, item in json.loads(done.stdout).items()}


def offline(folder: Path) -> dict[str, str]:
    """An environment in which Terraform asks nobody outside."""
    mirror = folder / "mirror"
    stub_provider.install(mirror)
    settings = folder / "terraform.rc"
    only = f'filesystem_mirror {{\n    path = "{mirror}"\n  }}'
    settings.write_text(f"disable_checkpoint = true\nprovider_installation {{\n  {only}\n}}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "HCLOUD_", "SWEEP_"))}
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        **kept,
        "TF_CLI_CONFIG_FILE": str(settings),
        "TF_IN_AUTOMATION": "1",
        "HOME": str(folder),
        "PYTHONPATH": search,
    }


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One for all tests: they read it, or work in a module of their own."""
    if shutil.which("terraform") is None:
        pytest.skip(NO_TERRAFORM)
    folder = tmp_path_factory.mktemp("terraform")
    copy = folder / "terraform"
    shutil.copytree(TERRAFORM, copy, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    return Workspace(copy, offline(folder))
