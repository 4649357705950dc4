"""What ``sandboxes up`` prints for its user."""

import os
import subprocess
import sys
from pathlib import Path

from sandboxes.local.stack import LocalService
from sandboxes.local.up import how_to_use


def test_export_lines_are_all_that_a_shell_needs(tmp_path: Path) -> None:
    token = tmp_path / "client"
    token.write_text("secret\n")
    text = how_to_use(LocalService("http://127.0.0.1:9", token, tmp_path / "operator"), Path("/run/docker.sock"))
    exports = "\n".join(line for line in text.splitlines() if line.startswith("export "))
    script = exports + '\nprintf "%s\\n" "$UCLOUD_SANDBOX_URL" "$UCLOUD_SANDBOX_API_TOKEN" "${PATH%%:*}"'
    done = subprocess.run(["/bin/sh", "-c", script], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["http://127.0.0.1:9", "secret", str(Path(sys.executable).parent)]


def test_ways_to_an_image_without_a_registry_are_shown(tmp_path: Path) -> None:
    text = how_to_use(LocalService("http://127.0.0.1:9", tmp_path, tmp_path), Path("/s/docker.sock"))
    assert "docker -H unix:///s/docker.sock load -i FILE" in text
    assert "sandboxes node demo-image --docker unix:///s/docker.sock" in text
