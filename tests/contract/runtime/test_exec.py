"""Starting processes: exit codes, signals, environment, directory, user, and programs that cannot be started."""

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure, StartFault
from tests.contract.runtime.lab import Box, Lab
from tests.contract.runtime.marks import also_on_runc


@also_on_runc
@pytest.mark.parametrize("code", [0, 1, 42, 126, 127, 255])
def test_exit_code_is_the_processs_own(box: Box, code: int) -> None:
    result = box.sh(f"exit {code}")

    assert (result.code, result.signal) == (code, None)


@also_on_runc
@pytest.mark.parametrize("number", [1, 9, 15])
def test_death_by_signal_gives_the_exit_code_of_a_shell(box: Box, number: int) -> None:
    result = box.sh(f"kill -{number} $$; echo survived")

    assert (result.code, result.signal, result.stdout) == (128 + number, number, b"")


@also_on_runc
def test_argv_is_exact(box: Box) -> None:
    hard = ["a b", "", "'quoted'", '"double"', "new\nline", "$HOME `id` *", "-n", "\\", "ünï→"]

    result = box.run("printf", "%s\\0", *hard)

    assert result.stdout.decode().split("\0")[:-1] == hard


def test_argument_of_the_longest_length_arrives_whole(box: Box) -> None:
    longest = "x" * (128 * 1024 - 1)

    assert box.run("printf", "%s", longest).stdout == longest.encode()


def test_command_line_of_a_mebibyte_arrives_whole(box: Box) -> None:
    parts = [f"{index:06d}" + "y" * 65530 for index in range(16)]

    assert box.run("printf", "%s", *parts).stdout == "".join(parts).encode()


@also_on_runc
def test_environment_is_the_sandboxs_and_the_commands(lab: Lab) -> None:
    with lab.sandbox(env={"BOTH": "sandbox", "ONLY_SANDBOX": "s=1"}) as box:
        seen = box.text("echo $BOTH; echo $ONLY_SANDBOX; echo $ONLY_EXEC", env={"BOTH": "exec", "ONLY_EXEC": "e e"})

    assert seen.split("\n") == ["exec", "s=1", "e e"]


def test_a_path_in_the_commands_environment_finds_the_program(box: Box) -> None:
    box.text("mkdir -p /workspace/tools; cd /workspace/tools; printf '#!/bin/sh\\necho mine\\n' >own; chmod 755 own")

    assert box.run("own", env={"PATH": "/nowhere:/workspace/tools:/bin"}).stdout == b"mine\n"


@also_on_runc
def test_working_directory_is_the_workspace_unless_asked(box: Box) -> None:
    assert box.text("pwd") == "/workspace"
    assert box.text("pwd", working_dir="/data") == "/data"


def test_relative_working_directory_starts_at_the_sandboxs(box: Box) -> None:
    box.text("mkdir -p /workspace/deep/er")

    assert box.text("pwd", working_dir="deep/er") == "/workspace/deep/er"


@also_on_runc
@pytest.mark.parametrize("path", ["/data/readme", "/workspace/file", "/tmp/file", "/tmp/missing"])
def test_working_directory_that_is_none_is_a_start_error(box: Box, path: str) -> None:
    box.text("touch /workspace/file /tmp/file")

    with pytest.raises(RuntimeFailure) as failure:
        box.exec("true", working_dir=path)

    assert (failure.value.code, failure.value.start_fault) == (ErrorCode.START_ERROR, StartFault.NOT_EXECUTABLE)
    assert path in failure.value.message


@also_on_runc
def test_working_directory_that_only_the_sandbox_sees(box: Box) -> None:
    box.text("mkdir -p /tmp/deep; ln -sfn /tmp/deep /workspace/link")

    assert box.text("pwd", working_dir="/tmp/deep") == "/tmp/deep"
    assert box.text("pwd -P", working_dir="link") == "/tmp/deep"


@also_on_runc
def test_missing_working_directory_is_a_start_error(box: Box) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        box.exec("true", working_dir="/not/there")

    assert (failure.value.code, failure.value.start_fault) == (ErrorCode.START_ERROR, StartFault.NOT_EXECUTABLE)
    assert "/not/there" in failure.value.message


@also_on_runc
@pytest.mark.parametrize(
    ("user", "ids"),
    [(None, "1000 1000"), ("0", "0 0"), ("1234:77", "1234 77"), ("agent", "1234 1234"), ("root", "0 0")],
)
def test_user_and_group_of_a_process(box: Box, user: str | None, ids: str) -> None:
    assert box.text("echo $(id -u) $(id -g)", user=user) == ids


def test_unknown_user_is_a_start_error(box: Box) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        box.exec("true", user="nobody-knows")

    assert failure.value.code is ErrorCode.START_ERROR


@also_on_runc
@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("not-there", StartFault.NOT_FOUND),
        ("/not/there", StartFault.NOT_FOUND),
        ("/data/readme", StartFault.NOT_EXECUTABLE),
        ("/data", StartFault.NOT_EXECUTABLE),
    ],
)
def test_program_that_cannot_be_started_is_a_start_error(box: Box, program: str, fault: StartFault) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        box.exec(program)

    assert (failure.value.code, failure.value.start_fault) == (ErrorCode.START_ERROR, fault)
    assert program in failure.value.message


@also_on_runc
def test_exec_in_a_sandbox_that_is_not_there(lab: Lab, box: Box) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        Box(lab, lab.order()).exec("true")

    assert failure.value.code is ErrorCode.SANDBOX_NOT_RUNNING


@also_on_runc
def test_capabilities_are_gone_and_cannot_be_won_back(box: Box) -> None:
    status = box.text("cat /proc/self/status", user="0")

    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status
