"""Text that no tracked file may contain."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each pattern is assembled from pieces, so that this file does not match itself.
UNFINISHED = "|".join(["TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error"])
INDEX_HOSTS = "|".join(["py" + r"pi\.org", "python" + "hosted", "deb" + r"\.debian\.org", "registry" + r"\.npmjs"])
SECRETS = "|".join(["BEGIN [A-Z ]*PRIVATE " + "KEY", "AKIA" + "[0-9A-Z]{16}"])


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (rf"\b({UNFINISHED})\b", "finish it or leave it out"),
        (INDEX_HOSTS, "the machine's own configuration names its package mirrors"),
        (SECRETS, "secrets do not belong in a repository"),
    ],
    ids=["unfinished", "index-hosts", "secrets"],
)
def test_no_tracked_file_holds(pattern: str, why: str) -> None:
    looked_for = re.compile(pattern)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if looked_for.search(line)
    ]
    assert not found, f"{why}: {found}"
