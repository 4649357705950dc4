"""The public SDK's traffic to the letter, against a real gateway and a node agent over the fake runtime.

Requests go through urllib as the SDK's blocking client sends them: one connection each, ``Connection: close``, the
token in ``X-Ucloud-Sandbox-Token``, path segments with no safe characters.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from tests.fakes.node import NodeUnderTest
from tests.integration.small_fleet import small_fleet

# All fields, as the SDK's dataclasses send them; `parkable` and `managed_process` only when true.
FULL: dict[str, Any] = {
    "command": [],
    "env": {},
    "working_dir": None,
    "memory_mb": 64,
    "cpus": 0.1,
    "disk_mb": 64,
    "network": "none",
    "ttl_seconds": None,
    "ssh": {
        "enabled": False,
        "user": "root",
        "host": "127.0.0.1",
        "host_port": None,
        "container_port": 22,
        "authorized_keys": [],
    },
    "security": {
        "user": "1000:1000",
        "cap_drop": ["ALL"],
        "cap_add": [],
        "no_new_privileges": True,
        "pids_limit": 256,
        "read_only_rootfs": False,
        "init": True,
    },
    "filesystem": {
        "enforce_disk_quota": False,
        "workspace_path": "/workspace",
        "tmpfs_mb": 64,
        "run_tmpfs_mb": 16,
    },
    "labels": {},
}
NULLS = {"memory_mb": None, "cpus": None, "disk_mb": None, "security": None, "filesystem": None}
SPARSE = {"image": "fake", "memory_mb": 64, "cpus": 0.1, "disk_mb": 64}


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    body: bytes
    headers: Any

    @property
    def json(self) -> dict[str, Any]:
        """The object in the body, as the SDK reads it: an empty body is an empty object."""
        value = json.loads(self.body.decode()) if self.body else {}
        assert isinstance(value, dict)
        return value


@dataclass
class OldSdk:
    """The SDK's blocking client, as far as the wire can see it."""

    url: str
    token: str
    node: NodeUnderTest

    def send(self, method: str, path: str, data: bytes | None = None, kind: str | None = None) -> Reply:
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("X-UCloud-Sandbox-Token", self.token)
        if kind is not None:
            request.add_header("Content-Type", kind)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Reply(answer.status, answer.read(), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.read(), error.headers)

    def post(self, path: str, payload: dict[str, Any]) -> Reply:
        return self.send("POST", path, json.dumps(payload).encode(), "application/json")

    def exec(self, sandbox_id: str, command: list[str], text: str | None = None) -> tuple[dict[str, Any], str]:
        body: dict[str, Any] = {
            "command": command,
            "env": {},
            "working_dir": None,
            "stdin": text is not None,
            "tty": False,
        }
        started = self.post(f"/v1/sandboxes/{quote(sandbox_id, safe='')}/exec", body)
        assert started.status == 201, started.body
        path = f"/v1/exec/{quote(started.json['session']['id'], safe='')}"
        if text is not None:
            assert self.post(f"{path}/stdin", {"data": text, "eof": True}).status == 200
        return self.wait(path)

    def wait(self, path: str) -> tuple[dict[str, Any], str]:
        """Poll with 1.0 s until the session has ended, then with 0.2 s until there is nothing more to read."""
        stdout, after, ended = "", 0, False
        while True:
            query = urlencode({"after": after, "limit": 100, "wait_seconds": 0.2 if ended else 1.0})
            reply = self.send("GET", f"{path}/events?{query}")
            assert reply.status == 200, reply.body
            events = reply.json["events"]
            for event in events:
                after += 1
                assert type(event["sequence"]) is int
                assert event["sequence"] == after
                stdout += event["data"] if event["stream"] == "stdout" else ""
            session = reply.json["session"]
            if ended and not events:
                return session, stdout
            ended = session["status"] in {"exited", "failed"}


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldSdk]:
    with small_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield OldSdk(fleet.gateway.url, fleet.client_token, fleet.node)


@pytest.fixture(scope="module")
def box(sdk: OldSdk) -> str:
    made = sdk.post("/v1/sandboxes", {"id": "old-box", "image": "fake", **FULL})
    assert made.status == 201, made.body
    return "old-box"


def name() -> str:
    return f"old-{uuid4().hex[:12]}"


@pytest.mark.parametrize("fields", [FULL, FULL | NULLS, FULL | {"parkable": True}, SPARSE, {"image": "fake"}])
def test_creates_full_and_sparse(sdk: OldSdk, fields: dict[str, Any]) -> None:
    payload = {"image": "fake", **fields, "id": name()}
    made = sdk.post("/v1/sandboxes", payload)
    assert made.status == 201, made.body
    assert made.json["sandbox"]["spec"]["id"] == payload["id"]
    assert made.headers["Connection"] == "close"
    assert made.headers["Content-Encoding"] is None
    assert sdk.post("/v1/sandboxes", payload).status == 200
    assert sdk.post("/v1/sandboxes", {**payload, "labels": {"another": "spec"}}).status == 409
    assert sdk.send("DELETE", f"/v1/sandboxes/{payload['id']}").status == 200


def test_a_create_without_an_id_gets_one(sdk: OldSdk) -> None:
    first, second = (sdk.post("/v1/sandboxes", SPARSE) for _ in range(2))
    ids = {reply.json["sandbox"]["spec"]["id"] for reply in (first, second)}
    assert (first.status, second.status, len(ids)) == (201, 201, 2)
    assert all(found.startswith("sandbox-") for found in ids)
    for found in ids:
        assert sdk.exec(found, ["echo", "hi"])[1] == "hi\n"
        assert sdk.send("DELETE", f"/v1/sandboxes/{found}").status == 200


def test_a_refused_create_without_an_id_leaves_nothing(sdk: OldSdk) -> None:
    label = uuid4().hex
    failure = RuntimeFailure(ErrorCode.IMAGE_ERROR, "no such image", reason=DeathReason.IMAGE_ERROR)
    sdk.node.runtime.controls.fail_creates.append(failure)
    refused = sdk.post("/v1/sandboxes", {**SPARSE, "labels": {"mark": label}})
    assert refused.json["code"] == "image_error"
    assert sdk.send("GET", f"/v1/sandboxes?label=mark%3D{label}").json["sandboxes"] == []


def test_exec_events_and_exit_codes(sdk: OldSdk, box: str) -> None:
    session, stdout = sdk.exec(box, ["sh", "-c", "echo one; sleep 1.2; echo two; exit 3"])
    assert (session["status"], session["exit_code"], stdout) == ("exited", 3, "one\ntwo\n")
    session, stdout = sdk.exec(box, ["cat"], text="fed ünïcode\n")
    assert (session["exit_code"], stdout) == (0, "fed ünïcode\n")


def test_the_sdk_reads_a_session_and_closes_its_input(sdk: OldSdk, box: str) -> None:
    body = {"command": ["cat"], "env": {"A": "b"}, "working_dir": "/", "stdin": True, "tty": False}
    session = sdk.post(f"/v1/sandboxes/{box}/exec", body).json["session"]
    path = f"/v1/exec/{quote(session['id'], safe='')}"
    assert sdk.post(f"{path}/stdin", {"data": "part", "eof": False}).status == 200
    closed = sdk.send("POST", f"{path}/close-stdin", b"")
    assert closed.status == 200, closed.body
    assert sdk.wait(path)[1] == "part"
    assert sdk.send("GET", path).json["session"]["exit_code"] == 0
    assert sdk.post(f"{path}/stdin", {"data": "late", "eof": True}).status == 200
    assert sdk.send("POST", f"{path}/close-stdin", b"", "application/octet-stream").status == 200


@pytest.mark.parametrize(
    "file", ["plain.txt", "a b/c d.txt", "q'uo\"te", "new\nline", "ünï☃", "+&=#;%41", "-rf", "dir/../up.txt", "a:b,c"]
)
def test_files_with_odd_names(sdk: OldSdk, box: str, file: str) -> None:
    path = f"/v1/sandboxes/{box}/files?{urlencode({'path': f'old/{file}'})}"
    for content in (b"\x00\xff" * 500, b""):
        put = sdk.send("PUT", path, content, "application/octet-stream")
        assert put.status == 200, put.body
        assert put.json["size"] == len(content)
        got = sdk.send("GET", path)
        assert (got.status, got.body) == (200, content)
        assert got.headers["Content-Length"] == str(len(content))


def test_a_missing_file_is_a_404(sdk: OldSdk, box: str) -> None:
    missing = sdk.send("GET", f"/v1/sandboxes/{box}/files?path=%2Fno%2Fsuch")
    assert missing.status == 404
    assert isinstance(missing.json["error"], str)


@pytest.mark.parametrize("query", ["", "?refresh=true", "?refresh=full"])
def test_the_list_has_the_spec_of_each(sdk: OldSdk, box: str, query: str) -> None:
    listed = sdk.send("GET", f"/v1/sandboxes{query}")
    assert listed.status == 200, listed.body
    assert box in [item["spec"]["id"] for item in listed.json["sandboxes"]]


def test_delete_twice_and_of_nothing(sdk: OldSdk) -> None:
    made = name()
    assert sdk.post("/v1/sandboxes", {**SPARSE, "id": made}).status == 201
    first, second = (sdk.send("DELETE", f"/v1/sandboxes/{made}") for _ in range(2))
    assert (first.status, second.status) == (200, 200)
    nothing = sdk.send("DELETE", f"/v1/sandboxes/{name()}")
    assert (nothing.status, nothing.json) == (200, {"ok": True, "deleted": False})


def test_a_wrong_token_is_a_401_with_its_body(sdk: OldSdk) -> None:
    stranger = OldSdk(sdk.url, "wrong", sdk.node)
    refused = stranger.post("/v1/sandboxes", {**SPARSE, "env": {"PAD": "x" * 100_000}})
    assert refused.status == 401
    assert isinstance(refused.json["error"], str)
    assert sdk.send("GET", "/healthz").status == 200
