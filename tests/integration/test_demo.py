"""``sandboxes demo`` for real: hello from gVisor, and nothing left on the machine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def test_demo_shows_isolation_and_leaves_nothing(engines: None) -> None:
    before = set(Path("/var/tmp").glob("sbd-*"))
    done = subprocess.run(
        [sys.executable, "-m", "sandboxes", "demo"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "hello"
    shown = {key: value for key, value in (re.split(r"\s{2,}", line, maxsplit=1) for line in lines[1:])}
    assert shown["isolation"].startswith("gvisor, on node ")
    assert "gVisor" in shown["kernel inside"]
    assert shown["kernel inside"].split(";")[0] not in shown["kernel of the host"]
    assert shown["left behind"].startswith("nothing ")
    # Either the image that the example names, or a line that names the one in its place.
    assert "cannot be pulled here" not in done.stderr or re.search(r"runs with \S+ in place of python:", done.stderr)
    assert set(Path("/var/tmp").glob("sbd-*")) <= before
