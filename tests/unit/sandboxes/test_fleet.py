"""The commands about whole sandboxes and nodes: what they print and send."""

import json

from gateway.wire.errors import ErrorCode
from tests.fakes.gateway import Gateway, Reply, error
from tests.unit.sandboxes.cli_process import Cli


def test_ls_prints_table_json_or_ids(cli: Cli, gateway: Gateway, box: str) -> None:
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


def test_ls_shows_the_tenants_to_those_who_see_several(cli: Cli, gateway: Gateway, box: str) -> None:
    foreign = {"id": "acme..box", "tenant": "acme"}
    gateway.sandboxes["acme..box"] = gateway.sandboxes["box"].model_copy(update=foreign)
    header, first, second = cli("ls", "--tenant", "acme")[1].decode().splitlines()
    assert header.split()[:3] == ["ID", "TENANT", "STATE"]
    assert first.split()[:3] == ["box", "default", "running"]
    assert second.split()[:3] == ["acme..box", "acme", "running"]
    assert [request.query.get("tenant") for request in gateway.sent("GET", "/sandboxes")] == ["acme"]


def test_ls_of_a_tenant_that_is_not_there_says_so(cli: Cli, gateway: Gateway) -> None:
    for _ in range(2):
        gateway.next("GET", "/v1/policy", Reply(body=b'{"tenants": ["acme"]}'))
        gateway.next("GET", "/v1/tokens", Reply(body=b'{"tokens": []}'))
    code, out, err = cli("ls", "--tenant", "acne")
    assert (code, out) == (1, b"")
    assert "did you mean acme?" in err
    assert cli("ls", "-q", "--tenant", "acme") == (0, b"", "")


def test_ls_all_includes_deleted_sandboxes(cli: Cli, gateway: Gateway) -> None:
    cli("ls", "--all")
    assert [request.query.get("state") for request in gateway.sent("GET", "/sandboxes")] == [None, "deleted"]


def test_pause_resume_restart(cli: Cli, gateway: Gateway, box: str) -> None:
    assert cli("pause", box) == (0, b"box  paused\n", "")
    assert cli("resume", box) == (0, b"box  running\n", "")
    assert json.loads(cli("restart", "--json", box)[1])[0]["generation"] == 2


def test_rm_continues_after_an_unknown_id(cli: Cli, gateway: Gateway, box: str) -> None:
    code, out, err = cli("rm", "nobody", box)
    assert (code, out) == (1, b"box  running\n")
    assert [line.partition(" ")[0] for line in err.splitlines()] == ["error:", "error:"]
    assert gateway.sandboxes == {}


def test_taking_back_unknown_capacity_fails(cli: Cli, gateway: Gateway) -> None:
    for words in (["nosuch"], ["nosuch", "--json"]):
        gateway.next("DELETE", "/capacity/prepare/nosuch", Reply(body=b'{"deleted": null}'))
        code, out, err = cli("capacity", "rm", *words)
        assert (code, out) == (1, b"")
        assert "nosuch" in err
    gateway.next("DELETE", "/capacity/prepare/some", Reply(body=b'{"deleted": {"prepare_id": "some"}}'))
    assert cli("capacity", "rm", "some")[0] == 0


def test_nodes_prints_table_or_json(cli: Cli, gateway: Gateway) -> None:
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


def test_nodes_with_a_clients_token_says_which_one_is_needed(cli: Cli, gateway: Gateway) -> None:
    gateway.next("GET", "/v1/nodes", error(ErrorCode.FORBIDDEN, "not with this token"))
    code, out, err = cli("nodes")
    assert (code, out) == (1, b"")
    assert err.startswith("error: not with this token") and "--token-file" in err
