"""SDK and command line against the whole service with real engines."""

import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.wire.tokens import TokenRequest
from node_agent.install import images
from sandboxes.local.dockerd import DEFAULT_SOCKET
from tests.stack import Up, running, until
from ucloud_sandboxes_sdk import Image, SandboxClient, SandboxHandle, TransferInterruptedError, event_bytes

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engines"), pytest.mark.timeout(300)]

Ready = Callable[[], bool]

MIB = 1024 * 1024
OUTPUT = 100_000_000
GROWTH = 48 * MIB
COUNT = 400
COUNTING = f"i=0; while [ $i -lt {COUNT} ]; do echo $i; i=$((i+1)); sleep 0.01; done"


@pytest.fixture(scope="module")
def service() -> Iterator[Up]:
    with running() as up:
        yield up


@pytest.fixture(scope="module")
def image(service: Up) -> str:
    ours = service.directory.docker_socket
    return images.test_image(f"unix://{ours if ours.exists() else DEFAULT_SOCKET}")


@pytest.fixture
def sandbox(service: Up, image: str) -> Iterator[SandboxHandle]:
    with service.client().create_sandbox(image=Image.from_registry(image), memory_mb=256, disk_mb=512) as made:
        yield made


PROGRAM = """
import sys, time
from ucloud_sandboxes_sdk import Image, SandboxClient

image, mark, box, moment = sys.argv[1:]
client = SandboxClient.from_env()

def at(name):
    if name == moment:
        print(name, flush=True)

if box:
    at("exec")
    client.exec(box, ["sleep", mark])
wanted = {"image": Image.from_registry(image), "memory_mb": 64, "disk_mb": 64, "labels": {"mark": mark}}
at("create")
with client.create_sandbox(**wanted) as sandbox:
    at("between")
    if moment == "between":
        time.sleep(60)
    if moment == "stream":
        for event in sandbox.start_exec(["sh", "-c", "echo out; sleep 300"]).events():
            if event["stream"] == "stdout":
                at("stream")
    at("exec")
    sandbox.exec(["sleep", "300"])
"""


def interrupted(service: Up, image: str, mark: str, moment: str, box: str = "", ready: Ready | None = None) -> int:
    """Run a program on the SDK, send it SIGINT at a moment, and return its exit code."""
    token = (service.directory.tokens / "client").read_text().strip()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, image, mark, box, moment],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "UCLOUD_SANDBOX_URL": service.url, "UCLOUD_SANDBOX_API_TOKEN": token},
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline().strip() == moment
        if ready:
            until(ready, f"ready for SIGINT: {moment}")
        program.send_signal(signal.SIGINT)
        return program.wait(60)


@pytest.mark.parametrize("moment", ["create", "between", "exec", "stream"])
def test_ctrl_c_leaves_nothing(service: Up, image: str, moment: str) -> None:
    mark = str(uuid4().int % 10**8)
    assert interrupted(service, image, mark, moment) == -signal.SIGINT
    assert service.client().list_sandboxes(labels={"mark": mark}) == []


def test_ctrl_c_while_the_service_creates_leaves_nothing(service: Up, image: str) -> None:
    mark = str(uuid4().int % 10**8)
    client = service.client()

    def known() -> bool:
        return bool(client.list_sandboxes(labels={"mark": mark}))

    assert interrupted(service, image, mark, "create", ready=known) == -signal.SIGINT
    assert not known()


def test_ctrl_c_in_an_exec_kills_its_process(service: Up, image: str, sandbox: SandboxHandle) -> None:
    mark = str(uuid4().int % 10**8)

    def runs() -> bool:
        return f"sleep {mark}" in sandbox.exec(["ps"]).stdout

    for ready in (runs, None):  # while it runs, and while its start is on its way
        assert interrupted(service, image, mark, "exec", sandbox.id, ready) == -signal.SIGINT
        until(lambda: not runs(), "the process has ended", 10)


def test_an_upload_during_a_restart_is_an_error_of_files(sandbox: SandboxHandle) -> None:
    def begun() -> bool:
        return ".upload-" in sandbox.exec(["ls", "-a", "/workspace"]).stdout

    class Restarts(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() == 2 * MIB:
                until(begun, "the upload has begun")
                sandbox.restart()
            return super().read(size)

    with pytest.raises(TransferInterruptedError) as caught:
        sandbox.upload_file("/workspace/big", Restarts(bytes(8 * MIB)))
    assert caught.value.retryable
    assert sandbox.upload_file("/workspace/big", bytes(8 * MIB))["size"] == 8 * MIB


def cli(service: Up, *words: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    argv = [sys.executable, "-m", "sandboxes", words[0], "--state-dir", str(service.directory.root), *words[1:]]
    return subprocess.run(argv, input=given, capture_output=True, timeout=120, check=False)


def test_a_killed_gateway_leaves_no_gap_in_the_output(service: Up, sandbox: SandboxHandle) -> None:
    handle = sandbox.start_exec(["sh", "-c", COUNTING])
    events = []
    for event in handle.events():
        events.append(event)
        if len(events) == 20:
            pid = service.pid("gateway")
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
    said = b"".join(event_bytes(event) for event in events if event["stream"] == "stdout")
    assert said.split() == [str(n).encode() for n in range(COUNT)]
    assert all(after["sequence"] == before["sequence"] + 1 for before, after in pairwise(events))
    assert handle.wait().exit_code == 0
    assert len(handle.wait().events) == len(events)


def test_a_hundred_megabytes_of_output_stream_in_constant_memory(sandbox: SandboxHandle) -> None:
    command = f"head -c {OUTPUT} /dev/zero | tr '\\0' x"
    expected = hashlib.sha256(b"x" * OUTPUT).hexdigest()
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak starts again from here
    before = _status_kib("VmRSS")
    digest = hashlib.sha256()
    for event in sandbox.start_exec(["sh", "-c", command]).events():
        if event["stream"] == "stdout":
            digest.update(event_bytes(event))
    assert digest.hexdigest() == expected
    assert _status_kib("VmHWM") - before < GROWTH // 1024


def _status_kib(name: str) -> int:
    (line,) = (text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(name))
    return int(line.split()[1])


def test_a_timeout_keeps_the_output_so_far_and_kills_the_group(sandbox: SandboxHandle) -> None:
    result = sandbox.exec(["sh", "-c", "sleep 987 & echo so far; wait"], timeout_seconds=1)
    assert (result.stdout, result.timed_out, result.exit_code) == ("so far\n", True, 124)
    assert "sleep 987" not in sandbox.exec(["ps"]).stdout


def test_input_and_output_are_exact(sandbox: SandboxHandle) -> None:
    data = os.urandom(3 * MIB)
    assert sandbox.exec(["cat"], input=data).stdout_bytes == data
    assert sandbox.exec(["head", "-c", "5"], input=data).stdout_bytes == data[:5]
    assert sandbox.exec(["cat"]).stdout_bytes == b""


def test_the_command_line_passes_bytes_and_exit_codes(service: Up, sandbox: SandboxHandle, image: str) -> None:
    data = os.urandom(MIB)
    assert cli(service, "exec", "-i", sandbox.id, "--", "cat", given=data).stdout == data
    assert cli(service, "cp", "-", f"{sandbox.id}:a b", given=data).returncode == 0
    assert cli(service, "cp", f"{sandbox.id}:a b", "-").stdout == data
    name = f"run-{uuid4().hex[:8]}"
    ran = cli(service, "run", "--name", name, image, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, b"out\n", b"err\n")
    assert name not in cli(service, "ls", "-q").stdout.decode().split()
    assert cli(service, "exec", "nobody", "--", "true").returncode == 125


@pytest.mark.parametrize("runtime", ["runsc", "docker"])
def test_a_tenants_sandbox_lives_under_its_own_id_on_both_engines(service: Up, image: str, runtime: str) -> None:
    own = "B" * 64
    request = TokenRequest(name="acme", scope="client", tenant="acme")
    client = SandboxClient(service.url, api_token=service.operator().create_token(request).token)
    fields = {"image": Image.from_registry(image), "memory_mb": 256, "disk_mb": 512, "runtime": runtime}
    with client.create_sandbox(id=own, **fields) as sandbox:
        assert sandbox.id == own
        assert sandbox.exec(["echo", "hello"]).stdout == "hello\n"
        sandbox.upload_file("/workspace/x", b"bytes")
        assert sandbox.download_file("/workspace/x") == b"bytes"
        sandbox.pause()
        assert sandbox.exec(["cat", "/workspace/x"]).stdout == "bytes"
        assert [record["id"] for record in client.list_sandboxes()] == [own]
        assert service.client().get_sandbox(own) is None
        record = service.operator().sandbox(f"acme..{own}")
        assert (record.tenant, record.runtime, record.state) == ("acme", runtime, "running")
    assert client.get_sandbox(own) is None
