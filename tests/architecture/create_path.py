"""Count the modules that take part in a create on gateway and node, in real processes (root, real gVisor).

``python -m tests.architecture.create_path [CHECKOUT]`` starts ``sandboxes up`` of that checkout with a trace in every
process, creates some sandboxes over HTTP, and prints the modules whose functions ran during every create.  Modules that
only run now and then (for a heartbeat, a tick) drop out, because they do not run during each create.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

IMAGE: Final = "trace:latest"
CREATES: Final = 8
SECONDS: Final = 120.0

# Loaded by every Python of the virtual environment, because a node has an environment of its own.  While the file FLAG
# exists, it records the files whose functions are called.
TRACE: Final = """
import os, sys, threading, time
called, on = set(), False

def note(frame, event, argument):
    if on and event == "call":
        called.add(frame.f_code.co_filename)

def watch():
    global on
    flag = "FLAG"
    while True:
        name = None
        try:
            with open(flag) as file:
                name = file.read()
        except OSError:
            pass
        if name and not on:
            called.clear()
            on = name
        elif on and not name:
            done, on = on, False
            with open(f"{flag}.{done}.{os.getpid()}.new", "w") as file:
                file.write("\\n".join(sorted(called)))
            os.rename(file.name, file.name.removesuffix(".new"))
        time.sleep(0.005)

if {"gateway", "node"} & set(sys.orig_argv) and "run" in sys.orig_argv:
    threading.setprofile(note)
    sys.setprofile(note)
    threading.Thread(target=watch, daemon=True).start()
"""


def image() -> bytes:
    """Return a root file system with a static busybox as a tar archive."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(os.path.realpath(busybox), "bin/busybox")
        for name in ("sh", "sleep"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return target.getvalue()


@contextlib.contextmanager
def traced(checkout: Path, flag: Path) -> Iterator[None]:
    """Make every Python of the checkout's virtual environment load the trace inside the block."""
    packages = next((checkout / ".venv/lib").glob("python3.*/site-packages"))
    hook, code = packages / "create_path_trace.pth", packages / "create_path_trace.py"
    code.write_text(TRACE.replace("FLAG", str(flag)))
    hook.write_text("import create_path_trace\n")
    try:
        yield
    finally:
        hook.unlink()
        code.unlink()


@contextlib.contextmanager
def service(checkout: Path, state: Path) -> Iterator[str]:
    """Run ``sandboxes up`` and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [checkout.resolve() / ".venv/bin/sandboxes", "up", "--state-dir", str(state), "--port", str(port)],
        cwd=checkout,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)


def call(url: str, token: str, method: str, path: str, body: object = None) -> object:
    """Make one call of the public API and return its JSON."""
    request = urllib.request.Request(
        url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


def walked(checkout: Path) -> dict[str, list[str]]:
    """Return, for the gateway and the node agent, the modules that ran during every create."""
    found: dict[str, list[set[str]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="path-", dir="/var/tmp") as temporary:
        state, flag = Path(temporary) / "state", Path(temporary) / "flag"
        with traced(checkout, flag), service(checkout, state) as url:
            docker = ["docker", "-H", f"unix://{next(state.rglob('docker.sock'))}"]
            subprocess.run([*docker, "import", "-", IMAGE], input=image(), check=True, stdout=subprocess.DEVNULL)
            token = next(state.rglob("client")).read_text().strip()
            for number in range(CREATES + 2):  # the first ones import modules and fill caches
                name = f"path-{number}"
                flag.write_text(name)
                time.sleep(0.1)
                call(
                    url, token, "POST", "/v1/sandboxes", {"id": name, "image": IMAGE, "command": ["/bin/sleep", "9999"]}
                )
                flag.unlink()
                time.sleep(0.2)
                call(url, token, "DELETE", f"/v1/sandboxes/{name}")
                if number >= 2:
                    for trace in flag.parent.glob(f"flag.{name}.*"):
                        for package in ("gateway", "node_agent"):
                            used = modules_of(trace.read_text().splitlines(), checkout, package)
                            if used:
                                found[f"{package} {trace.suffix}"].append(used)
    return most_complete(found)


def modules_of(files: list[str], checkout: Path, package: str) -> set[str]:
    """Return those of the files that lie in one of our packages, relative to the checkout."""
    root = f"{checkout.resolve()}/{package}/"
    return {name.removeprefix(f"{checkout.resolve()}/") for name in files if name.startswith(root)}


def most_complete(found: dict[str, list[set[str]]]) -> dict[str, list[str]]:
    """Return each package's modules from the process that ran most of them: each also runs a few of the other's."""
    best: dict[str, list[str]] = {}
    for process, traces in found.items():
        package = process.split()[0]
        common = sorted(set.intersection(*traces)) if len(traces) == CREATES else []
        if len(common) > len(best.get(package, [])):
            best[package] = common
    return best


if __name__ == "__main__":
    for package, names in walked(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        print(f"{package}: {len(names)} modules")
        print("".join(f"    {name}\n" for name in names), end="")
