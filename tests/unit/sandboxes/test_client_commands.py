"""The client commands against a fake gateway: what they print, answer and send."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecRequest
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import ExecStatus
from sandboxes import app, client
from tests.fakes.gateway import TOKEN, Gateway, Reply, error, sandbox_record
from tests.waiting import wait_until

Cli = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as running:
        yield running


@pytest.fixture
def environment(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    own = {"UCLOUD_SANDBOX_URL": gateway.url, "UCLOUD_SANDBOX_API_TOKEN": TOKEN}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return own


@pytest.fixture
def cli(environment: dict[str, str], capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Runs one command line; its exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, bytes, str]:
        capfdbinary.readouterr()
        code = app.run(list(words))
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


@pytest.fixture
def box(gateway: Gateway) -> str:
    gateway.sandboxes["box"] = sandbox_record(SandboxSpec(id="box", image="busybox", labels={"team": "a"}))
    return "box"


def process(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    """The real program, for what only a process of its own shows."""
    return subprocess.Popen(
        [sys.executable, "-m", "sandboxes", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )


# -- run --------------------------------------------------------------------------------------------------------------


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


def test_run_keep_leaves_the_sandbox_and_says_so(cli: Cli, gateway: Gateway) -> None:
    code, out, err = cli("run", "--keep", "--gpus", "1", "busybox", "--", "echo", "hi")
    assert (code, out) == (0, b"hi\n")
    (name,) = gateway.sandboxes
    assert f"sandboxes rm {name}" in err
    assert gateway.sandboxes[name].spec.idle_seconds is None
    assert gateway.sandboxes[name].spec.gpus == 1


@pytest.mark.parametrize("code", [ErrorCode.IMAGE_ERROR, ErrorCode.INVALID_REQUEST])
def test_run_deletes_what_it_made_also_when_the_exec_is_refused(cli: Cli, gateway: Gateway, code: ErrorCode) -> None:
    gateway.next("POST", "/exec", error(code))
    assert cli("run", "busybox", "--", "true")[0] == 125
    assert gateway.sandboxes == {}


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/exec"])
def test_run_tells_a_failure_of_the_service_from_the_command_s_own(cli: Cli, gateway: Gateway, path: str) -> None:
    gateway.next("POST", path, error(ErrorCode.IMAGE_ERROR, "image busybox: not found"))
    assert cli("run", "busybox", "--", "true") == (125, b"", "error: image busybox: not found\n")
    assert gateway.sandboxes == {}
    assert gateway.sent("DELETE", "/run-[0-9a-f]+")


def test_run_does_not_touch_a_sandbox_that_was_there(cli: Cli, gateway: Gateway, box: str) -> None:
    assert cli("run", "--name", "mine", "--keep", "busybox", "--", "true")[0] == 0
    code, _, err = cli("run", "--name", "mine", "busybox", "--", "true")
    assert (code, err) == (125, "error: sandbox mine exists with another spec\n")
    assert set(gateway.sandboxes) == {"box", "mine"}


def test_run_that_reached_nobody_ends_soon_and_speaks_of_no_sandbox(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REACH_SECONDS", 0.0)
    monkeypatch.setenv("UCLOUD_SANDBOX_URL", "http://127.0.0.1:1")
    code, _, err = cli("run", "busybox", "--", "true")
    assert (code, err.count("\n")) == (125, 1)
    assert "Connection refused; is the service running" in err


def test_the_label_that_run_sets_for_itself_is_not_shown(cli: Cli, gateway: Gateway) -> None:
    assert cli("run", "--name", "mine", "--keep", "--label", "k=v", "busybox", "--", "true")[0] == 0
    assert len(gateway.sandboxes["mine"].spec.labels) == 2
    _, out, _ = cli("ls")
    assert out.rstrip().endswith(b" k=v")


def test_run_keeps_the_command_s_exit_code_when_the_delete_fails(cli: Cli, gateway: Gateway) -> None:
    gateway.program = lambda request, stdin: ([], 7)
    gateway.next("DELETE", "/run-[0-9a-f]+", error(ErrorCode.INTERNAL, "broken"))
    code, _, err = cli("run", "busybox", "--", "true")
    assert code == 7
    assert err.startswith("warning: sandbox run-")


def test_run_json_is_one_object(cli: Cli) -> None:
    code, out, _ = cli("run", "--json", "busybox", "--", "echo", "hi")
    answer = json.loads(out)
    assert (code, answer["stdout"], answer["exit_code"], answer["timed_out"]) == (0, "hi\n", 0, False)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_run_that_is_ended_deletes_its_sandbox(
    environment: dict[str, str], gateway: Gateway, number: int, expected: int
) -> None:
    gateway.open_session = True
    with process("run", "busybox", "--", "sleep", "60") as running:
        wait_until(lambda: bool(gateway.sent("GET", "/stream")))
        running.send_signal(number)
        running.communicate(timeout=30)
    assert running.returncode == expected
    assert gateway.sandboxes == {}


# -- exec -------------------------------------------------------------------------------------------------------------


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
    with process("exec", "-i", box, "--", "cat", stdin=subprocess.PIPE) as running:
        out, err = running.communicate(given, timeout=30)
    assert (running.returncode, out, err) == (0, given, b"")


def test_exec_says_when_the_timeout_killed_it(cli: Cli, gateway: Gateway, box: str) -> None:
    session = gateway.add_session(box, ExecRequest(command=["sleep"]))
    session.finish([("stdout", b"so far")], 124, status=ExecStatus.FAILED, timed_out=True)
    answer = {"session": session.session.model_dump(mode="json")}
    gateway.next("POST", "/exec", Reply(201, json.dumps(answer).encode()))
    assert cli("exec", box, "--", "sleep") == (124, b"so far", "error: the command was killed by its timeout\n")


def test_exec_warns_of_output_that_was_cut(cli: Cli, gateway: Gateway, box: str) -> None:
    session = gateway.add_session(box, ExecRequest(command=["yes"]))
    session.finish([("stdout", b"y")], 0, truncated=True, stdout_bytes=99)
    gateway.next("POST", "/exec", Reply(201, json.dumps({"session": session.session.model_dump(mode="json")}).encode()))
    code, out, err = cli("exec", box, "--", "yes")
    assert (code, out) == (0, b"y")
    assert "in full it had 99 bytes" in err


def test_exec_without_an_outcome_is_not_success(cli: Cli, gateway: Gateway, box: str) -> None:
    gateway.open_session = True
    gateway.next("GET", "/stream", error(ErrorCode.EXEC_LOST, "the node restarted"))
    assert cli("exec", box, "--", "x") == (125, b"", "error: the node restarted\n")


def test_ctrl_c_goes_to_the_command(environment: dict[str, str], gateway: Gateway, box: str) -> None:
    gateway.open_session = True
    with process("exec", box, "--", "sleep", "60") as running:
        wait_until(lambda: bool(gateway.sent("GET", "/stream")))
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=30)
    assert running.returncode == 130
    assert [request.json() for request in gateway.sent("POST", "/signal")] == [{"signal": signal.SIGINT}]


def test_a_reader_that_leaves_ends_the_command(environment: dict[str, str], gateway: Gateway, box: str) -> None:
    gateway.program = lambda request, stdin: ([("stdout", b"y\n" * 30_000)] * 20, 0)
    with process("exec", box, "--", "yes") as running:
        assert running.stdout
        running.stdout.read(2)
        running.stdout.close()
        running.wait(timeout=30)
    assert running.returncode == 141
    assert gateway.sent("POST", "/signal")[0].json() == {"signal": signal.SIGKILL}


# -- signs of life ----------------------------------------------------------------------------------------------------


def test_a_wait_is_shown_on_a_terminal(
    environment: dict[str, str], gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxes.progress.PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    release = threading.Event()
    gateway.next("GET", "/sandboxes", Reply(body=b'{"sandboxes":[]}', hang=release))
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(app.run(["ls", "-q"])))
        thread.start()
        shown = b""
        while b"listing sandboxes" not in shown:
            shown += os.read(ours, 4096)
        release.set()
        while thread.is_alive():  # a terminal that nobody reads holds its writer up
            if select.select([ours], [], [], 0.01)[0]:
                os.read(ours, 4096)
    os.close(ours)
    assert codes == [0]


# -- lists and lives --------------------------------------------------------------------------------------------------


def test_ls_for_people_for_programs_and_for_pipes(cli: Cli, gateway: Gateway, box: str) -> None:
    code, out, _ = cli("ls")
    lines = out.decode().splitlines()
    assert code == 0
    assert lines[0].split()[:3] == ["ID", "STATE", "IMAGE"]
    assert lines[1].split()[:7] == ["box", "running", "busybox", "node-1", "gvisor", "1", "1G"]
    assert lines[1].rstrip().endswith("team=a")
    assert [record["id"] for record in json.loads(cli("ls", "--json")[1])] == ["box"]
    assert cli("ls", "-q")[1] == b"box\n"
    assert cli("ls", "-q", "--label", "team=b")[1] == b""
    assert cli("ls", "-q", "--state", "paused")[1] == b""


def test_ls_all_asks_for_the_deleted_ones_too(cli: Cli, gateway: Gateway) -> None:
    cli("ls", "--all")
    assert [request.query.get("state") for request in gateway.sent("GET", "/sandboxes")] == [None, "deleted"]


def test_pause_resume_restart(cli: Cli, gateway: Gateway, box: str) -> None:
    assert cli("pause", box) == (0, b"box  paused\n", "")
    assert cli("resume", box) == (0, b"box  running\n", "")
    assert json.loads(cli("restart", "--json", box)[1])[0]["generation"] == 2


def test_rm_goes_on_after_one_that_is_not_there(cli: Cli, gateway: Gateway, box: str) -> None:
    code, out, err = cli("rm", "nobody", box)
    assert (code, out) == (1, b"box  running\n")
    assert err == "error: sandbox nobody: there is no such sandbox\nerror: 1 of 2 failed\n"
    assert gateway.sandboxes == {}


def test_logs_come_out_as_bytes(cli: Cli, gateway: Gateway, box: str) -> None:
    gateway.logs = {"stdout": b"\xff0123456", "stderr": b"oops"}
    assert cli("logs", box) == (0, b"\xff0123456", "oops")
    assert json.loads(cli("logs", "--json", box)[1])["stdout"].endswith("0123456")


def test_nodes_is_a_table(cli: Cli, gateway: Gateway) -> None:
    total = {"cpus": 2, "memory_mb": 4096, "disk_mb": 10240, "gpus": 0, "slots": 100}
    node = {
        "id": "node-1",
        "instance": "i-1",
        "pool": "cpu",
        "state": "ready",
        "node_url": "http://127.0.0.1:1",
        "agent_version": "0.1.0",
        "total": total,
        "reserved": total | {"cpus": 0.5, "slots": 1, "memory_mb": 512, "disk_mb": 0},
        "runtimes": [{"name": "runsc", "version": "1", "isolations": ["gvisor"]}],
        "sandboxes": 1,
        "registered_at": "2026-01-01T00:00:00Z",
    }
    gateway.next("GET", "/v1/nodes", *[Reply(body=json.dumps({"nodes": [node]}).encode())] * 2)
    row = cli("nodes")[1].decode().splitlines()[1].split()
    assert row == ["node-1", "ready", "cpu", "1/100", "0.5/2", "512M/4G", "0M/10G", "0/0", "runsc(gvisor)", "never"]
    assert json.loads(cli("nodes", "--json")[1])[0]["id"] == "node-1"


# -- cp ---------------------------------------------------------------------------------------------------------------


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
    with process("cp", "-", f"{box}:f", stdin=subprocess.PIPE) as running:
        assert running.communicate(b"\xff" * 3_000_000, timeout=30) == (b"", b"")
    assert gateway.files == {(box, "f"): b"\xff" * 3_000_000}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("a", "b"), 2, "one of SRC and DST must be ID:PATH"),
        (("x:a", "y:b"), 2, "one of SRC and DST must be ID:PATH"),
        (("./x:a", "b"), 2, "one of SRC and DST must be ID:PATH"),
        (("-", "box:/d/"), 2, "name the file"),
        (("missing", "box:f"), 1, "missing: No such file or directory"),
        ((".", "box:f"), 1, "is a directory; pack it"),
        (("box:f", "/"), 1, "no such file in sandbox box"),
    ],
)
def test_cp_refuses_in_one_sentence(cli: Cli, box: str, words: tuple[str, str], code: int, sentence: str) -> None:
    got, out, err = cli("cp", *words)
    assert (got, out) == (code, b"")
    assert sentence in err
    assert err.count("\n") == 1


# -- which service ----------------------------------------------------------------------------------------------------


def local_service(tmp_path: Path, url: str) -> tuple[str, str]:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "url").write_text(url + "\n")
    (tmp_path / "tokens" / "client").write_text(TOKEN + "\n")
    (tmp_path / "tokens" / "operator").write_text("operator-token\n")
    return ("--state-dir", str(tmp_path))


def test_the_service_of_this_machine_is_found(
    cli: Cli, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL")
    monkeypatch.delenv("UCLOUD_SANDBOX_API_TOKEN")
    state = local_service(tmp_path, gateway.url)
    assert cli("ls", *state)[0] == 0
    cli("nodes", *state)
    assert gateway.requests[-1].headers["authorization"] == "Bearer operator-token"


def test_a_local_token_is_not_shown_to_another_service(
    cli: Cli, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_API_TOKEN")
    code, _, err = cli("ls", *local_service(tmp_path, "http://127.0.0.1:1"))
    assert (code, gateway.requests) == (1, [])
    assert "no token for" in err


def test_a_token_file_beats_the_environment(cli: Cli, gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("other\n")
    code, _, err = cli("ls", "--token-file", str(tmp_path / "token"))
    assert gateway.requests[-1].headers["x-ucloud-sandbox-token"] == "other"
    assert (code, err.count("\n")) == (1, 1)
    assert "the token is not known" in err


def test_nothing_told_is_one_sentence(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL")
    code, _, err = cli("ls", "--state-dir", str(tmp_path))
    assert (code, err.count("\n")) == (1, 1)
    assert "set UCLOUD_SANDBOX_URL" in err


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("ls", "--nonsense"),
        ("ls", "--label", "x"),
        ("run", "--env", "NOT_SET_ANYWHERE", "busybox", "--", "true"),
        ("exec", "box"),
    ],
)
def test_wrong_usage_is_2(cli: Cli, gateway: Gateway, words: tuple[str, ...]) -> None:
    assert cli(*words)[0] == 2
    assert gateway.requests == []


@pytest.mark.parametrize("words", [("run", "busybox"), ("exec", "box")])
def test_an_option_of_the_command_without_dashes_is_told_of_them(
    cli: Cli, gateway: Gateway, words: tuple[str, ...]
) -> None:
    code, _, err = cli(*words, "python", "-c", "x")
    assert code == 2
    assert "No such option: -c; put -- before the command" in err
    assert "put --" not in cli(*words, "--nonsense", "--", "true")[2]
    assert gateway.requests == []


@pytest.mark.parametrize("words", [("run", "busybox", "--", "true"), ("exec", "box", "--", "true")])
def test_without_a_service_the_command_has_no_outcome(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL")
    code, _, err = cli(words[0], "--state-dir", str(tmp_path), *words[1:])
    assert code == 125
    assert "set UCLOUD_SANDBOX_URL" in err


@pytest.mark.parametrize("name", ["run", "exec", "ls", "cp", "logs", "rm", "pause", "resume", "restart", "nodes"])
def test_every_help_has_an_example(cli: Cli, name: str) -> None:
    code, out, _ = cli(name, "--help")
    assert code == 0
    assert "Example:  " in out.decode()
    assert "--url" in out.decode()
