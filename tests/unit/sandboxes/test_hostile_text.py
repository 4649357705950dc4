"""What the service says is shown by the command line, and never obeyed by a terminal."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.text import LOG_FORMAT, LogFormatter, printable
from sandboxes.app import COMMANDS
from tests.fakes.gateway import Gateway, Reply, error
from tests.unit.sandboxes.cli_process import Cli

EVIL = "x\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[31m\r\nerror: forged\x9b31m\x85\u202egnp\u2066\u200b\u2028\x7f\x00\t[bold]y"
AT = "2026-01-01T00:00:00Z"
SHAPE = {"cpus": 1.0, "memory_mb": 64, "disk_mb": 64, "gpus": 0, "slots": 1}
SPEC = {"id": EVIL, "cpus": 1.0, "memory_mb": 64}
BOX = {
    "id": EVIL,
    "image": EVIL,
    "labels": {EVIL: EVIL},
    "spec": SPEC,
    "state": EVIL,
    "reason": EVIL,
    "detail": EVIL,
    "isolation": EVIL,
    "node_id": EVIL,
    "created_at": AT,
}
NODE = {
    "id": EVIL,
    "instance": EVIL,
    "pool": EVIL,
    "state": "ready",
    "node_url": EVIL,
    "agent_version": EVIL,
    "total": SHAPE,
    "reserved": SHAPE,
    "runtimes": [{"name": "runsc", "version": EVIL.replace("\0", ""), "isolations": ["gvisor"]}],
    "sandboxes": 1,
    "registered_at": AT,
}
UNITS = {"prepare_id": EVIL, "resources": SHAPE, "count": 1, "expires_at": EVIL}
TOKEN = {"id": EVIL, "name": EVIL, "scope": "client", "tenant": EVIL, "created_at": AT, "expires_at": None}
SESSION = {"id": EVIL, "status": "failed", "exit_code": 1, "error": EVIL, "truncated": True, "stdout_bytes": EVIL}
ENTRY = {
    "time": AT,
    "actor": "client",
    "token_name": EVIL,
    "tenant": EVIL,
    "address": EVIL,
    "method": EVIL,
    "route": EVIL,
    "target": {EVIL: EVIL},
    "status": 403,
    "code": EVIL,
}
BOUNDS = {
    "tenant": EVIL,
    "file": EVIL,
    "problem": EVIL,
    "policy": {"max_cpus": {"value": 1.0, "where": EVIL}},
    "quota": {"cpus": {"value": 1.0, "where": EVIL}},
    "tenants": [EVIL],
}
USED = {"tenant": EVIL, "sandbox_id": EVIL, "generation": 1, "begin": AT, "end": AT, "amounts": {}}


def answer(body: object) -> Reply:
    return Reply(body=json.dumps(body).encode())


BOX_ANSWER = answer({"sandbox": BOX})
# command line → the calls that it makes, and what the service answers
TALKS: dict[tuple[str, ...], list[tuple[str, str, Reply]]] = {
    ("ls",): [("GET", "/sandboxes", answer({"sandboxes": [BOX]}))],
    ("ls", "-q"): [("GET", "/sandboxes", answer({"sandboxes": [BOX]}))],
    ("rm", "box"): [("DELETE", "/box", answer({"ok": True, "deleted": BOX}))],
    ("pause", "box"): [("POST", "/pause", BOX_ANSWER)],
    ("resume", "box"): [("POST", "/resume", BOX_ANSWER)],
    ("restart", "box"): [("POST", "/restart", BOX_ANSWER)],
    ("nodes",): [("GET", "/nodes", answer({"nodes": [NODE]}))],
    ("capacity", "prepare", "1"): [("POST", "/prepare", answer({"prepare": UNITS}))],
    ("capacity", "ls"): [("GET", "/prepare", answer({"prepared": [UNITS]}))],
    ("capacity", "rm", "unit"): [("DELETE", "/unit", answer({"deleted": UNITS}))],
    ("exec", "box", "--", "true"): [("POST", "/exec", answer({"session": SESSION, "events": []}))],
    ("run", "image", "--", "true"): [
        ("POST", "/sandboxes", BOX_ANSWER),
        ("POST", "/exec", answer({"session": SESSION, "events": []})),
        ("DELETE", "/run-.*", error(ErrorCode.INTERNAL, EVIL)),
    ],
    ("cp", "box:file", "."): [("GET", "/files", error(ErrorCode.FILE_NOT_FOUND, EVIL))],
    ("logs", "box"): [("GET", "/logs", error(ErrorCode.SANDBOX_NOT_FOUND, EVIL))],
    ("token", "ls"): [("GET", "/tokens", answer({"tokens": [TOKEN]}))],
    ("token", "create", "--name", "x", "--scope", "client"): [
        ("POST", "/tokens", answer({"token": EVIL, "record": TOKEN}))
    ],
    ("token", "revoke", "id"): [("DELETE", "/id", answer(TOKEN))],
    ("policy", "show"): [("GET", "/policy", answer(BOUNDS))],
    ("usage",): [("GET", "/usage", answer({"items": [USED]}))],
    ("audit",): [("GET", "/audit", answer({"entries": [ENTRY], "next_cursor": "c", "more": False}))],
}
GROUPS = ("capacity", "token", "policy")
NOTHING_FROM_THE_SERVICE = {"up", "demo", "doctor", "gateway", "simulate", "bootstrap"}


def assert_harmless(text: str, lines: int | None = None) -> None:
    assert printable(text, lines=True) == text
    assert "error: forged" not in text.splitlines()
    assert lines is None or len(text.splitlines()) <= lines


def test_every_command_is_walked() -> None:
    assert {words[0] for words in TALKS} | NOTHING_FROM_THE_SERVICE >= set(COMMANDS)


@pytest.mark.parametrize("json_too", [False, True])
@pytest.mark.parametrize("words", TALKS, ids=" ".join)
def test_answers_are_shown_and_not_obeyed(
    cli: Cli, gateway: Gateway, words: tuple[str, ...], json_too: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for method, path, reply in TALKS[words]:
        gateway.next(method, path, reply)
    flag = ["--json"] if json_too and "-q" not in words else []
    _, out, err = cli(words[0], *(words[1:2] if words[0] in GROUPS else ()), *flag, *_rest(words))
    assert gateway.requests
    assert out or err
    assert "that is no" not in err  # the answer is one of the protocol's
    assert_harmless(out.decode())
    assert_harmless(err)


def _rest(words: tuple[str, ...]) -> tuple[str, ...]:
    return words[2:] if words[0] in GROUPS else words[1:]


@pytest.mark.parametrize("words", TALKS, ids=" ".join)
def test_refusals_are_shown_and_not_obeyed(
    cli: Cli, gateway: Gateway, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    method, path, _ = TALKS[words][0]
    gateway.next(method, path, error(ErrorCode.INVALID_REQUEST, EVIL))
    code, out, err = cli(*words)
    assert code != 0
    assert err.startswith("error: ")
    assert_harmless(out.decode())
    assert_harmless(err, lines=2)


def test_output_of_programs_is_not_touched(cli: Cli, gateway: Gateway, box: str) -> None:
    gateway.program = lambda request, stdin: ([("stdout", b"\x1b[31mred\x1b[0m\r\n"), ("stderr", EVIL.encode())], 0)
    assert cli("exec", box, "--", "ls", "--color") == (0, b"\x1b[31mred\x1b[0m\r\n", EVIL)


def test_no_record_of_a_log_makes_a_second_line() -> None:
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "refused %s", (EVIL,), None)
    assert_harmless(LogFormatter(LOG_FORMAT).format(record), lines=1)
    try:
        raise ValueError(EVIL)
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "Traceback" in LogFormatter(LOG_FORMAT).format(record).splitlines()[1]


def test_text_of_our_own_keeps_its_lines() -> None:
    assert printable("a\nb\x1bc", lines=True) == "a\nb\\x1bc"
    assert printable("ünïcode 😀 \\ ok") == "ünïcode 😀 \\ ok"


def walk(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in walk(each)]
    if isinstance(value, list):
        return [text for each in value for text in walk(each)]
    return [value] if isinstance(value, str) else []


def test_json_carries_the_exact_text(cli: Cli, gateway: Gateway) -> None:
    gateway.next("GET", "/sandboxes", answer({"sandboxes": [BOX]}))
    assert EVIL in walk(json.loads(cli("ls", "--json")[1]))
