"""The commands that work inside sandboxes: what they print, return and send."""

import json
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecRequest
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import ExecStatus
from sandboxes import client
from tests.fakes.gateway import Gateway, Reply, error
from tests.unit.sandboxes.cli_process import Cli, cli_process
from tests.waiting import wait_until


def test_run_passes_everything_through_and_deletes(cli: Cli, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.program = lambda request, stdin: ([("stdout", b"\xffout\n"), ("stderr", b"err\n")], 3)
    monkeypatch.setenv("SECRET", "s3")
    code, out, err = cli(
        *("run", "busybox", "--cpus", "0.5", "--memory", "64", "--disk", "128", "--network", "bridge", "--ttl", "60"),
        *("--env", "A=b=c", "-e", "SECRET", "--label", "k=v", "--name", "mine", "--isolation", "runc"),
        *("--timeout", "9", "--", "sh", "-c", "exit 3"),
    )
    assert (code, out, err) == (3, b"\xffout\n", "err\n")
    spec = SandboxSpec.model_validate_json(gateway.sent("POST", "/sandboxes")[0].body)
    assert (spec.id, spec.image, spec.cpus, spec.memory_mb, spec.disk_mb) == ("mine", "busybox", 0.5, 64, 128)
    assert (spec.network, spec.ttl_seconds, spec.isolation) == ("bridge", 60, "runc")
    assert (spec.env, spec.labels["k"]) == ({"A": "b=c", "SECRET": "s3"}, "v")
    assert spec.idle_seconds  # a client that is killed leaves nothing for ever
    order = ExecRequest.model_validate_json(gateway.sent("POST", "/exec")[0].body)
    assert (order.command, order.timeout_seconds) == (["sh", "-c", "exit 3"], 9)
    assert gateway.sandboxes == {}


def test_run_deletes_its_sandbox_although_ctrl_c_is_pressed_again(
    environment: dict[str, str], gateway: Gateway
) -> None:
    gateway.open_session = True
    held = threading.Event()
    gateway.next("DELETE", "/run-[0-9a-f]+", Reply(503, b'{"retryable":true}', hang=held))
    with cli_process("run", "busybox", "--", "sleep", "99") as process:
        gateway.wait_for("the exec", lambda: gateway.sessions)
        process.send_signal(signal.SIGINT)
        gateway.wait_for("the deletion", lambda: gateway.sent("DELETE", "/run-[0-9a-f]+"))
        process.send_signal(signal.SIGINT)
        held.set()
        assert process.wait(20) == 130
    assert gateway.sandboxes == {}


def test_run_says_on_stderr_what_it_waits_for(cli: Cli, gateway: Gateway) -> None:
    waits = error(ErrorCode.NO_ROOM, "it waits for a node that runs docker", headers={"Retry-After": "0"})
    gateway.next("POST", "/v1/sandboxes", waits, waits)
    code, _, err = cli("run", "busybox", "--", "true")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("sandboxes: ") and "it waits for a node that runs docker" in err
    first, *later = (float(request.query["wait_seconds"]) for request in gateway.sent("POST", "/v1/sandboxes"))
    assert first < min(later)


def test_run_keep_leaves_the_sandbox(cli: Cli, gateway: Gateway) -> None:
    code, out, err = cli("run", "--keep", "--gpus", "1", "busybox", "--", "echo", "hi")
    assert (code, out) == (0, b"hi\n")
    (name,) = gateway.sandboxes
    assert f"sandboxes rm {name}" in err
    assert gateway.sandboxes[name].spec.idle_seconds is None
    assert gateway.sandboxes[name].spec.gpus == 1


@pytest.mark.parametrize("code", [ErrorCode.IMAGE_ERROR, ErrorCode.INVALID_REQUEST])
def test_run_deletes_its_sandbox_when_the_exec_is_refused(cli: Cli, gateway: Gateway, code: ErrorCode) -> None:
    gateway.next("POST", "/exec", error(code))
    assert cli("run", "busybox", "--", "true")[0] == 125
    assert gateway.sandboxes == {}


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/exec"])
def test_run_exits_125_when_the_service_failed(cli: Cli, gateway: Gateway, path: str) -> None:
    gateway.next("POST", path, error(ErrorCode.IMAGE_ERROR, "image busybox: not found"))
    assert cli("run", "busybox", "--", "true") == (125, b"", "error: image busybox: not found\n")
    assert gateway.sandboxes == {}
    assert gateway.sent("DELETE", "/run-[0-9a-f]+")


def test_run_leaves_an_existing_sandbox_alone(cli: Cli, gateway: Gateway, box: str) -> None:
    assert cli("run", "--name", "mine", "--keep", "busybox", "--", "true")[0] == 0
    code, _, err = cli("run", "--name", "mine", "busybox", "--", "true")
    assert (code, err.count("\n")) == (125, 1)
    assert set(gateway.sandboxes) == {"box", "mine"}


def test_run_gives_up_soon_on_an_unreachable_service(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REACH_SECONDS", 0.0)
    monkeypatch.setenv("UCLOUD_SANDBOX_URL", "http://127.0.0.1:1")
    code, _, err = cli("run", "busybox", "--", "true")
    assert (code, err.count("\n")) == (125, 1)
    assert "UCLOUD_SANDBOX_URL" in err


def test_internal_label_of_run_is_not_shown(cli: Cli, gateway: Gateway) -> None:
    assert cli("run", "--name", "mine", "--keep", "--label", "k=v", "busybox", "--", "true")[0] == 0
    assert len(gateway.sandboxes["mine"].spec.labels) == 2
    _, out, _ = cli("ls")
    assert out.rstrip().endswith(b" k=v")


def test_run_keeps_the_exit_code_when_the_delete_fails(cli: Cli, gateway: Gateway) -> None:
    gateway.program = lambda request, stdin: ([], 7)
    gateway.next("DELETE", "/run-[0-9a-f]+", error(ErrorCode.INTERNAL, "broken"))
    code, _, err = cli("run", "busybox", "--", "true")
    assert code == 7
    assert err.startswith("warning: sandbox run-")


def test_run_json_is_one_object(cli: Cli) -> None:
    code, out, _ = cli("run", "--json", "busybox", "--", "echo", "hi")
    answer = json.loads(out)
    assert (code, answer["stdout"], answer["exit_code"], answer["timed_out"]) == (0, "hi\n", 0, False)


@pytest.mark.parametrize("ignored", ["", "INT"])
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_run_deletes_its_sandbox_on_a_signal(
    environment: dict[str, str], gateway: Gateway, number: int, expected: int, ignored: str
) -> None:
    gateway.open_session = True
    before = ("sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh") if ignored else ()
    with cli_process("run", "busybox", "--", "sleep", "60", before=before) as running:
        wait_until(lambda: bool(gateway.sent("GET", "/stream")))
        running.send_signal(number)
        running.communicate(timeout=30)
    assert running.returncode == expected
    assert gateway.sandboxes == {}


@pytest.mark.parametrize("code", [0, 1, 42, 137, 255])
def test_exec_passes_the_exit_code_through(cli: Cli, gateway: Gateway, box: str, code: int) -> None:
    gateway.program = lambda request, stdin: ([], code)
    assert cli("exec", box, "--", "x") == (code, b"", "")


def test_exec_passes_its_options_on(cli: Cli, gateway: Gateway, box: str) -> None:
    cli("exec", "-w", "/w", "-u", "0:0", "-e", "A=b", box, "--", "ls", "-l")
    order = ExecRequest.model_validate_json(gateway.sent("POST", "/exec")[0].body)
    assert (order.command, order.working_dir, order.user, order.env) == (["ls", "-l"], "/w", "0:0", {"A": "b"})
    assert order.stdin is False


def test_exec_sends_standard_input_byte_for_byte(environment: dict[str, str], gateway: Gateway, box: str) -> None:
    given = bytes(range(256)) * 1000
    with cli_process("exec", "-i", box, "--", "cat", stdin=subprocess.PIPE) as running:
        out, err = running.communicate(given, timeout=30)
    assert (running.returncode, out, err) == (0, given, b"")


def test_exec_reports_a_timeout(cli: Cli, gateway: Gateway, box: str) -> None:
    session = gateway.add_session(box, ExecRequest(command=["sleep"]))
    session.finish([("stdout", b"so far")], 124, status=ExecStatus.FAILED, timed_out=True)
    answer = {"session": session.session.model_dump(mode="json")}
    gateway.next("POST", "/exec", Reply(201, json.dumps(answer).encode()))
    code, out, err = cli("exec", box, "--", "sleep")
    assert (code, out, err.count("\n")) == (124, b"so far", 1)


def test_exec_warns_of_truncated_output(cli: Cli, gateway: Gateway, box: str) -> None:
    session = gateway.add_session(box, ExecRequest(command=["yes"]))
    session.finish([("stdout", b"y")], 0, truncated=True, stdout_bytes=99)
    gateway.next("POST", "/exec", Reply(201, json.dumps({"session": session.session.model_dump(mode="json")}).encode()))
    code, out, err = cli("exec", box, "--", "yes")
    assert (code, out) == (0, b"y")
    assert err.startswith("warning: ") and " 99 bytes" in err


def test_exec_without_an_outcome_is_not_success(cli: Cli, gateway: Gateway, box: str) -> None:
    gateway.open_session = True
    gateway.next("GET", "/stream", error(ErrorCode.EXEC_LOST, "the node restarted"))
    assert cli("exec", box, "--", "x") == (125, b"", "error: the node restarted\n")


def test_ctrl_c_is_passed_to_the_command(environment: dict[str, str], gateway: Gateway, box: str) -> None:
    gateway.open_session = True
    with cli_process("exec", box, "--", "sleep", "60") as running:
        wait_until(lambda: bool(gateway.sent("GET", "/stream")))
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=30)
    assert running.returncode == 130
    assert [request.json() for request in gateway.sent("POST", "/signal")] == [{"signal": signal.SIGINT}]


def test_closed_output_kills_the_command(environment: dict[str, str], gateway: Gateway, box: str) -> None:
    gateway.program = lambda request, stdin: ([("stdout", b"y\n" * 30_000)] * 20, 0)
    with cli_process("exec", box, "--", "yes") as running:
        assert running.stdout
        running.stdout.read(2)
        running.stdout.close()
        running.wait(timeout=30)
    assert running.returncode == 141
    assert gateway.sent("POST", "/signal")[0].json() == {"signal": signal.SIGKILL}


def test_logs_are_printed_as_bytes(cli: Cli, gateway: Gateway, box: str) -> None:
    gateway.logs = {"stdout": b"\xff0123456", "stderr": b"oops"}
    assert cli("logs", box) == (0, b"\xff0123456", "oops")
    assert json.loads(cli("logs", "--json", box)[1])["stdout"].endswith("0123456")


def test_cp_in_and_out(cli: Cli, gateway: Gateway, box: str, tmp_path: Path) -> None:
    source = tmp_path / "a b"
    source.write_bytes(b"\x00\xff")
    assert cli("cp", str(source), f"{box}:/d/") == (0, b"", "")
    assert gateway.files == {(box, "/d/a b"): b"\x00\xff"}
    assert cli("cp", f"{box}:/d/a b", "-") == (0, b"\x00\xff", "")
    target = tmp_path / "out"
    target.mkdir()
    _, out, _ = cli("cp", "--json", f"{box}:/d/a b", str(target))
    assert (target / "a b").read_bytes() == b"\x00\xff"
    assert json.loads(out) == {"from": "box:/d/a b", "to": str(target / "a b"), "size": 2}


def test_cp_from_standard_input(environment: dict[str, str], gateway: Gateway, box: str) -> None:
    with cli_process("cp", "-", f"{box}:f", stdin=subprocess.PIPE) as running:
        assert running.communicate(b"\xff" * 3_000_000, timeout=30) == (b"", b"")
    assert gateway.files == {(box, "f"): b"\xff" * 3_000_000}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("a", "b"), 2),
        (("x:a", "y:b"), 2),
        (("./x:a", "b"), 2),
        (("-", "box:/d/"), 2),
        (("missing", "box:f"), 1),
        ((".", "box:f"), 1),
        (("box:f", "/"), 1),
    ],
)
def test_cp_refuses_with_one_line(cli: Cli, gateway: Gateway, box: str, words: tuple[str, str], code: int) -> None:
    got, out, err = cli("cp", *words)
    assert (got, out, err.count("\n")) == (code, b"", 1)
    assert err.startswith("error: ")
    assert gateway.files == {}
