"""`setup/borrow.sh` without a network says what is missing and why, and lets the tests go on."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests import borrowed

ROOT: Final = Path(__file__).resolve().parents[3]
TOOLS: Final = ("bash", "dirname", "grep", "mkdir", "mktemp", "rm", "sed", "tail")
REFUSES: Final = "#!/bin/sh\necho 'E: no network' >&2\nexit 100\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout, and the few programs of a machine whose apt reaches nothing."""
    (tmp_path / "setup").mkdir()
    shutil.copy(ROOT / "setup/borrow.sh", tmp_path / "setup")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    (tools / "apt-get").write_text(REFUSES)
    (tools / "apt-get").chmod(0o755)
    return tmp_path


def test_what_cannot_be_fetched_is_named_and_its_tests_are_skipped(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.run(
        ["bash", str(checkout / "setup/borrow.sh")],
        env={"PATH": str(checkout / "bin")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sentence = "cloud-init could not be fetched by setup/borrow.sh: E: no network"
    assert f"{sentence}; its tests are skipped" in done.stderr
    assert sorted(path.name for path in (checkout / ".borrowed").iterdir()) == ["lists", "root", "why"]

    monkeypatch.setattr(borrowed, "FOLDER", checkout / ".borrowed")
    monkeypatch.setenv("PATH", str(checkout / "bin"))
    with pytest.raises(pytest.skip.Exception, match=sentence):
        borrowed.borrowed("cloud-init")
    assert borrowed.borrowed("bash") == str(checkout / "bin/bash")
