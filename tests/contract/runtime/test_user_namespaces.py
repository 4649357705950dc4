"""A Docker engine with ``userns-remap``: root of a sandbox under runc is nobody on the host, and all else works.

The engine looks its users up in ``/etc``, so engine and runtime run in a mount namespace where those files are others.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import docker
import pytest

from node_agent.runtime.docker_engine.runtime import DockerRuntime
from tests.contract.runtime.lab import Lab
from tests.engines import leftovers
from tests.engines.dockerd import private_daemon
from tests.engines.images import import_images

FIRST = 2_000_000
FILES = {
    "passwd": "sandboxtest:x:64998:64998::/nonexistent:/usr/sbin/nologin\n",
    "group": "sandboxtest:x:64998:\n",
    "subuid": f"sandboxtest:{FIRST}:65536\n",
    "subgid": f"sandboxtest:{FIRST}:65536\n",
}
IN_NAMESPACE = """
for file in passwd group subuid subgid; do mount --bind "$1/$file" "/etc/$file" || exit 1; done
shift
exec "$@"
"""


@pytest.mark.usefixtures("engines")
def test_root_under_runc_is_another_user_on_the_host(tmp_path: Path) -> None:
    if not all(Path("/etc", name).exists() for name in FILES):
        pytest.skip("this machine has no /etc/subuid")
    for name, line in FILES.items():
        (tmp_path / name).write_text(Path("/etc", name).read_text() + line)
        (tmp_path / name).chmod(0o644)

    command = ["sh", "-c", IN_NAMESPACE, "sh", str(tmp_path), sys.executable, "-m", __name__]
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "slave", *command],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "isolations": ["runc"],
        "inside": ["0", "from the image", "kept"],
        "outside": [FIRST, FIRST + 1000],
        "left": [],
    }


def main() -> None:
    """Try a remapped engine, and print what was found."""
    with (
        tempfile.TemporaryDirectory(prefix="sfn-", dir="/tmp") as place,
        private_daemon("--userns-remap=sandboxtest") as engine,
    ):
        client = docker.APIClient(base_url=engine.url, timeout=60)
        images = import_images(client)
        root, tag = Path(place), f"{FIRST:08x}"
        runtime = DockerRuntime(root, tag=tag, base_url=engine.url)
        facts = runtime.probe()
        lab = Lab(runtime, lambda: runtime, root, tag, images, {"runtime": "docker", "isolation": "runc"})
        owners = []
        with lab.sandbox(security={"user": "0"}) as box:
            inside = box.text("id -u; cat /data/readme; echo kept >/root/file; cat /root/file").splitlines()
            pid = client.inspect_container(box.container(client))["State"]["Pid"]
            owners.append(Path(f"/proc/{pid}").stat().st_uid)
        with lab.sandbox() as box:
            box.text("echo mine >/workspace/file")
            owners.append((root / "docker" / "sandboxes" / box.id / "volume" / "workspace" / "file").stat().st_uid)
        runtime.sweep()
        runtime.close()
        client.close()
        found = {"isolations": list(facts.isolations), "inside": inside, "outside": owners}
        print(json.dumps(found | {"left": leftovers.of_node(root, tag)}))


if __name__ == "__main__":
    main()
