"""Everything that changes something or is refused leaves a line in the audit log, and nothing secret is in it."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from gateway.services import audit
from gateway.wire.tokens import TokenRequest, TokenScope
from sandboxes import app
from tests.integration.gateway_http import HttpGateway, running_gateway


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway") / "state"


@pytest.fixture(scope="module")
def gateway(state_dir: Path) -> Iterator[HttpGateway]:
    with running_gateway(state_dir) as running:
        yield running


def lines(state_dir: Path) -> list[dict[str, Any]]:
    return [line for line in raw_lines(state_dir) if line.get("outcome") != "pending"]


def raw_lines(state_dir: Path) -> list[dict[str, Any]]:
    files = sorted((state_dir / "audit").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def last(state_dir: Path) -> dict[str, Any]:
    return lines(state_dir)[-1]


def test_a_create_leaves_who_what_and_outcome(gateway: HttpGateway, state_dir: Path) -> None:
    body = {"id": "new", "image": "alpine", "env": {"KEY": "SECRET-VALUE"}, "command": ["run", "SECRET-ARGUMENT"]}
    answer = gateway.call("POST", "/v1/sandboxes", json=body, headers={**gateway.client, "X-Request-Id": "call-1"})
    line = last(state_dir)
    assert answer.status_code == 201
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/sandboxes", 201)
    assert (line["actor"], line["token_name"], line["tenant"]) == ("client", "client", "default")
    assert (line["request_id"], line["address"]) == ("call-1", "127.0.0.1")
    assert line["target"] == {"sandbox_id": "new"}
    assert line["image"] == answer.json()["sandbox"]["image"]
    assert len(line["spec_sha256"]) == 64
    assert "SECRET" not in json.dumps(lines(state_dir))


def test_every_call_that_changes_something_has_a_line_and_reads_have_none(
    gateway: HttpGateway, state_dir: Path
) -> None:
    gateway.create("other")
    before = len(lines(state_dir))
    path = "/v1/sandboxes/other/files?path=/workspace/SECRET-PATH"
    for method, url, options in [
        ("POST", "/v1/sandboxes/other/exec", {"json": {"command": ["true", "SECRET"]}}),
        ("PUT", path, {"data": b"SECRET"}),
        ("GET", "/v1/sandboxes/other", {}),
        ("GET", "/v1/sandboxes?label=a=SECRET", {}),
        ("DELETE", "/v1/sandboxes/other", {}),
    ]:
        assert gateway.call(method, url, **options).ok, url
    gateway.beat()
    written = [(line["method"], line["route"], line["status"]) for line in lines(state_dir)[before:]]
    assert written == [
        ("POST", "/v1/sandboxes/{sandbox_id}/exec", 201),
        ("PUT", "/v1/sandboxes/{sandbox_id}/files", 200),
        ("DELETE", "/v1/sandboxes/{sandbox_id}", 200),
    ]
    assert all(line["target"]["sandbox_id"] == "other" for line in lines(state_dir)[before:])
    assert "SECRET" not in json.dumps(lines(state_dir))


def test_refusals_are_written_with_their_code(gateway: HttpGateway, state_dir: Path) -> None:
    def refused(method: str, path: str, **options: Any) -> tuple[object, ...]:
        gateway.call(method, path, **options)
        line = last(state_dir)
        return line["actor"], line.get("route"), line["status"], line["code"]

    unknown = {"headers": {"Authorization": "Bearer SECRET-TOKEN"}}
    assert refused("GET", "/v1/nodes", **unknown) == ("nobody", "/v1/nodes", 401, "unauthorized")
    assert refused("GET", "/v1/nodes") == ("client", "/v1/nodes", 403, "forbidden")
    assert refused("GET", "/v1/SECRET") == ("client", None, 404, "not_found")
    other = ("client", "/v1/sandboxes/{sandbox_id}", 404, "sandbox_not_found")
    assert refused("GET", "/v1/sandboxes/somebody-elses") == other
    assert refused("POST", "/v1/sandboxes", data=b"{SECRET") == ("client", "/v1/sandboxes", 422, "invalid_request")
    taken = {"json": {"id": "box", "image": "secret-free"}}
    assert refused("POST", "/v1/sandboxes", **taken) == ("client", "/v1/sandboxes", 409, "spec_conflict")
    assert last(state_dir)["target"] == {"sandbox_id": "box"}
    assert '"SECRET' not in json.dumps(lines(state_dir)).replace('"secret-free"', "")


def test_a_refusal_by_the_policy_names_its_keys_and_a_vain_delete_what_it_found(
    gateway: HttpGateway, state_dir: Path
) -> None:
    spec = {"image": "a", "isolation": "runc", "security": {"user": "SECRET"}}
    assert gateway.call("POST", "/v1/sandboxes", json=spec).status_code == 403
    line = last(state_dir)
    assert (line["code"], line["fields"]) == ("policy_denied", ["isolation", "security.user"])
    assert "SECRET" not in json.dumps(line)
    assert gateway.call("DELETE", "/v1/sandboxes/never-was").json()["deleted"] is False
    line = last(state_dir)
    assert (line["status"], line["code"]) == (200, "sandbox_not_found")
    gateway.call("POST", "/v1/sandboxes", data=b'{"SECRET": 1}')
    assert "fields" not in last(state_dir)


def test_tokens_are_written_by_id(gateway: HttpGateway, state_dir: Path) -> None:
    made = gateway.call("POST", "/v1/tokens", json={"name": "t", "scope": "client"}, headers=gateway.operator).json()
    assert last(state_dir)["target"] == {"token_id": made["record"]["id"]}
    gateway.call("DELETE", f"/v1/tokens/{made['record']['id']}", headers=gateway.operator)
    assert last(state_dir)["target"] == {"token_id": made["record"]["id"]}
    assert made["token"] not in json.dumps(lines(state_dir))


def test_one_thing_has_one_name_and_a_guess_names_nothing_of_anothers(gateway: HttpGateway, state_dir: Path) -> None:
    def token_of(tenant: str) -> dict[str, str]:
        request = TokenRequest(name=tenant, scope=TokenScope.CLIENT, tenant=tenant)
        return {"Authorization": f"Bearer {gateway.loop.call(gateway.services.tokens.make(request)).token}"}

    def targets(method: str, path: str, headers: dict[str, str], **options: Any) -> dict[str, str]:
        gateway.call(method, path, headers=headers, **options)
        found: dict[str, str] = last(state_dir)["target"]
        return found

    alpha, nobody, code = token_of("alpha"), {"Authorization": "Bearer none"}, f"exec-{'0' * 32}.1."
    p1, s1 = {"prepare_id": "alpha..p1"}, {"sandbox_id": "alpha..s1"}
    for path in ("/v1/capacity/prepare", "/v1/builders/prepare"):
        body = {"id": "p1", "count": 1, **({} if "builders" in path else {"cpus": 1})}
        assert targets("POST", path, alpha, json=body) == p1
        assert targets("DELETE", f"{path}/p1", alpha) == targets("DELETE", f"{path}/alpha..p1", gateway.operator) == p1
        assert targets("DELETE", f"{path}/beta..p1", alpha) == {"prepare_id": "alpha..beta..p1"}
        assert targets("DELETE", f"{path}/beta..p1", gateway.client) == {"prepare_id": "default..beta..p1"}
        assert targets("DELETE", f"{path}/beta..p1", nobody) == {}
    assert targets("POST", "/v1/sandboxes", alpha, json={"id": "s1", "image": "alpine"}) == s1
    operators = targets("DELETE", "/v1/sandboxes/alpha..s1", gateway.operator)
    assert operators == targets("DELETE", "/v1/sandboxes/s1", alpha) == s1
    assert targets("DELETE", "/v1/sandboxes/beta..s1", alpha) == {"sandbox_id": "alpha..beta..s1"}
    assert targets("DELETE", "/v1/sandboxes/beta..s1", nobody) == {}
    for said in ("s1", "alpha..s1"):
        assert targets("POST", f"/v1/exec/{code}{said}/close-stdin", alpha) == s1 | {"session_id": f"{code}alpha..s1"}
    guess = targets("POST", f"/v1/exec/{code}beta..s1/close-stdin", alpha)
    assert guess == {"session_id": f"{code}alpha..beta..s1", "sandbox_id": "alpha..beta..s1"}
    assert targets("POST", "/v1/exec/beta..s1/close-stdin", alpha) == {"session_id": "alpha..beta..s1"}
    assert targets("POST", f"/v1/exec/{code}beta..s1/close-stdin", nobody) == {}

    def page(tenant: str) -> Any:
        return gateway.call("GET", f"/v1/audit?tenant={tenant}&limit=1000", headers=gateway.operator).json()["entries"]

    assert page("beta") == []
    by_operator = [entry["target"] for entry in page("alpha") if entry["actor"] == "operator"]
    assert by_operator == [p1, p1, s1]


def test_no_client_can_forge_a_line(gateway: HttpGateway, state_dir: Path) -> None:
    before = len(lines(state_dir))
    forged = "x%0A%7B%22actor%22%3A%22operator%22%7D%E2%80%A8%1B%5B2J"
    gateway.call("DELETE", f"/v1/tokens/{forged}", headers={**gateway.operator, "X-Forwarded-For": "1.2.3.4\t, x"})
    gateway.call("GET", f"/v1/sandboxes/{forged}")
    written = lines(state_dir)[before:]
    assert [line["actor"] for line in written] == ["operator", "client"]
    assert "\n{" in written[0]["target"]["token_id"]
    for file in (state_dir / "audit").iterdir():
        assert all(byte == 0x0A or 0x20 <= byte < 0x7F for byte in file.read_bytes())


def test_files_are_private_and_survive_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with running_gateway(tmp_path / "state") as gateway:
            gateway.call("DELETE", "/v1/sandboxes/box")
    (file,) = (tmp_path / "state" / "audit").glob("*.jsonl")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [line["method"] for line in lines(tmp_path / "state") if "method" in line].count("DELETE") == 2


def test_service_made_ends_appear_as_the_services(gateway: HttpGateway, state_dir: Path) -> None:
    gateway.create("short", ttl_seconds=1)
    gone = threading.Event()
    while gateway.call("GET", "/v1/sandboxes/short").json()["sandbox"]["state"] != "deleted":
        gone.wait(0.1)
    (line,) = [line for line in lines(state_dir) if line.get("event") == "ttl"]
    assert (line["actor"], line["target"]["sandbox_id"], line["tenant"]) == ("service", "short", "default")


def test_operators_read_it_page_by_page(gateway: HttpGateway, state_dir: Path) -> None:
    acme = gateway.loop.call(
        gateway.services.tokens.make(TokenRequest(name="a", scope=TokenScope.CLIENT, tenant="acme"))
    ).token
    gateway.call("GET", "/v1/nodes", headers={"Authorization": f"Bearer {acme}"})
    gateway.call("GET", "/v1/nodes")

    def page(query: str) -> Any:
        answer = gateway.call("GET", f"/v1/audit?{query}", headers=gateway.operator)
        assert answer.ok, answer.text
        return answer.json()

    whole = page("limit=1000")
    assert not whole["more"]
    assert [entry["time"] for entry in whole["entries"]] == [line["time"] for line in lines(state_dir)]
    first = page("limit=1")
    second = page(f"limit=1&cursor={first['next_cursor']}")
    assert first["entries"] + second["entries"] == whole["entries"][:2]
    assert [entry["token_name"] for entry in page("tenant=acme")["entries"]] == ["a"]
    assert page("since=2999-01-01T00:00:00Z")["entries"] == []
    assert page("until=2001-01-01T00:00:00Z")["entries"] == []
    assert page(f"cursor={whole['next_cursor']}")["entries"] == []
    gateway.call("GET", "/v1/nodes")
    assert len(page(f"cursor={whole['next_cursor']}")["entries"]) == 1
    assert gateway.call("GET", "/v1/audit").status_code == 403
    assert gateway.call("GET", "/v1/audit?cursor=../../x:1", headers=gateway.operator).status_code == 422


def test_a_flood_of_refusals_is_counted_not_written(
    gateway: HttpGateway, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "BURST", 5)
    before = len(lines(state_dir))
    with requests.Session() as session:
        for _ in range(40):
            assert session.get(gateway.url + "/v1/nodes", timeout=10).status_code == 401
    assert len(lines(state_dir)) - before < 20
    gateway.loop.call(gateway.services.audit.write_counts())
    assert sum(line.get("count", 1) for line in lines(state_dir)[before:]) == 40


def test_many_calls_at_once_leave_a_whole_line_each(gateway: HttpGateway, state_dir: Path) -> None:
    before = len(lines(state_dir))

    def calls() -> None:
        with requests.Session() as session:
            for number in range(10):
                url = f"{gateway.url}/v1/sandboxes/none-{number}"
                assert session.delete(url, headers=gateway.client, timeout=20).ok

    threads = [threading.Thread(target=calls) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(state_dir)) - before == 80


def test_the_command_prints_it_from_the_gateway_and_from_its_files(
    gateway: HttpGateway, state_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.call("DELETE", "/v1/tokens/x%1B%5B31m", headers=gateway.operator)
    secret = tmp_path / "token"
    secret.write_text(gateway.secrets[TokenScope.OPERATOR])
    for where in (["--url", gateway.url, "--token-file", str(secret)], ["--state-dir", str(state_dir)]):
        assert app.run(["audit", "--json", *where]) == 0
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert printed == [line for line in lines(state_dir) if line in printed]
        assert printed[-1]["target"] == {"token_id": "x\x1b[31m"}
        assert app.run(["audit", "--limit", "1", "--since", "1h", *where]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1
        assert app.run(["audit", *where]) == 0
        assert "\x1b" not in capsys.readouterr().out
        assert app.run(["audit", "--since", "yesterday", *where]) == 2
        capsys.readouterr()


def test_tokens_made_without_the_gateway_are_written_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state-dir", str(tmp_path)]
    assert app.run(["token", "create", "--name", "first", "--scope", "operator", "--json", *state]) == 0
    made = json.loads(capsys.readouterr().out)
    assert app.run(["token", "revoke", made["record"]["id"], *state]) == 0
    written = [(line["actor"], line["event"], line["target"]["token_id"]) for line in lines(tmp_path)]
    assert written == [("local", event, made["record"]["id"]) for event in ("token_created", "token_revoked")]
