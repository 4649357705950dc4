"""`sandboxes policy`: what it refuses and names, its exit codes, and that it reads the file as the gateway does."""

import io
import json
from pathlib import Path

import pytest

from sandboxes import app
from tests.fakes.gateway import TOKEN, Gateway, Reply

POLICY = "[default.policy]\nmax_cpus = 2\n[tenants.acme.policy]\nisolations = ['gvisor', 'runc']\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


def spec(tmp_path: Path, **fields: object) -> str:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"image": "debian:12", **fields}))
    return str(path)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Name no service, and none that runs on this machine."""
    monkeypatch.delenv("UCLOUD_SANDBOX_URL", raising=False)
    monkeypatch.setattr("gateway.cli_policy.UP_STATE_DIR", tmp_path / "none")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["policy", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_refused_spec_exits_1_and_names_field_value_and_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: Path
) -> None:
    code, out, _ = run(capsys, "check", spec(tmp_path, cpus=4, isolation="runc"), "--policy", str(policy))
    assert code == 1
    lines = out.splitlines()
    assert lines[1].strip().startswith("cpus: 4 ")
    assert f"{policy} [default.policy] max_cpus" in lines[1]
    assert lines[2].strip().startswith("isolation: 'runc' ")


def test_the_tenant_decides(capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: Path) -> None:
    words = ("check", spec(tmp_path, isolation="runc"), "--policy", str(policy), "--json")
    code, out, _ = run(capsys, *words)
    assert (code, [one["field"] for one in json.loads(out)["violations"]]) == (1, ["isolation"])
    code, out, _ = run(capsys, *words, "--tenant", "acme")
    assert (code, json.loads(out)["allowed"], json.loads(out)["violations"]) == (0, True, [])


def test_a_spec_is_read_from_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, policy: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"image": "debian"}')))
    assert run(capsys, "check", "-", "--policy", str(policy))[0] == 0


def test_without_a_policy_the_gateways_setting_or_the_defaults_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: Path
) -> None:
    asked = spec(tmp_path, cpus=4)
    assert run(capsys, "check", asked)[0] == 0
    monkeypatch.setenv("SANDBOXES_GATEWAY_POLICY_FILE", str(policy))
    assert run(capsys, "check", asked)[0] == 1


def test_without_a_policy_it_says_that_nothing_was_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--policy" in run(capsys, "check", spec(tmp_path))[1]
    assert "--policy" in run(capsys, "show")[2]


def test_the_quota_is_checked_against_its_limits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: Path
) -> None:
    policy.write_text("[default.quota]\ncpus = 2\ngpus = 0\n[tenants.none.quota]\ncreates_per_second = 0\n")
    words = ("check", spec(tmp_path, cpus=4, gpus=1), "--policy", str(policy), "--json")
    code, out, _ = run(capsys, *words)
    assert (code, [one["field"] for one in json.loads(out)["violations"]]) == (1, ["quota.cpus", "quota.gpus"])
    assert json.loads(out)["violations"][0]["where"] == f"{policy} [default.quota] cpus"
    code, out, _ = run(capsys, "check", spec(tmp_path), *words[2:], "--tenant", "none")
    assert (code, [one["field"] for one in json.loads(out)["violations"]]) == (1, ["quota.creates_per_second"])
    code, _, err = run(capsys, "check", spec(tmp_path), "--policy", str(policy))
    assert (code, "alone" in err) == (0, True)


def test_the_running_gateway_is_asked_and_its_usage_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = {
        "tenant": "acme",
        "file": "/etc/policy.toml",
        "problem": "policy file /etc/policy.toml: [default.policy] max_cpu: there is no such key",
        "policy": {"isolations": {"value": ["gvisor", "runc"], "where": "/etc/policy.toml [acme.policy] isolations"}},
        "quota": {"cpus": {"value": 2.0, "where": "/etc/policy.toml [acme.quota] cpus"}},
        "prepared_units": 7,
        "tenants": ["acme"],
        "used": {"cpus": 1.5, "memory_mb": 0, "disk_mb": 0, "gpus": 0, "slots": 1},
    }
    with Gateway() as gateway:
        monkeypatch.setenv("UCLOUD_SANDBOX_URL", gateway.url)
        monkeypatch.setenv("UCLOUD_SANDBOX_API_TOKEN", TOKEN)
        gateway.next("GET", "/v1/policy", *[Reply(body=json.dumps(answer).encode())] * 4)
        asked = spec(tmp_path, isolation="runc", security={"user": "1000"})
        code, out, _ = run(capsys, "check", asked, "--tenant", "acme", "--json")
        found = json.loads(out)
        assert (code, [one["field"] for one in found["violations"]]) == (1, ["quota.cpus"])
        assert (found["file"], found["used"]["cpus"]) == ("/etc/policy.toml", 1.5)
        _, out, err = run(capsys, "show", "--tenant", "acme")
        assert gateway.url in err and "max_cpu" in err
        assert "/etc/policy.toml [acme.policy] isolations" in out
        rows = {line.split()[0]: line for line in out.splitlines()}
        assert "IN USE" in rows["KEY"]
        assert rows["quota.cpus"].split()[1:3] == ["2.0", "1.5"]
        assert " 7 " in rows["quota.prepared_units"]
        shown = json.loads(run(capsys, "show", "--tenant", "acme", "--json")[1])["quota"]
        assert (shown["sandboxes"]["used"], shown["cpus"]["used"], shown["creates_per_second"]["used"]) == (
            1,
            1.5,
            None,
        )
        assert {request.query.get("tenant") for request in gateway.sent("GET", "/v1/policy")} == {"acme"}


@pytest.mark.parametrize("content", ["", "[]", '{"image": 3}', '{"image": "a", "env": {"KEY": "secret", "k": 1}}'])
def test_a_wrong_spec_exits_2_without_its_values(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    path = tmp_path / "spec.json"
    path.write_text(content)
    code, _, err = run(capsys, "check", str(path))
    assert code == 2
    assert str(path) in err
    assert "secret" not in err


def test_a_wrong_policy_or_tenant_exits_2(capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: Path) -> None:
    policy.write_text("[default.policy]\nmax_cpu = 2\n")
    code, _, err = run(capsys, "show", "--policy", str(policy))
    assert code == 2
    assert "[default.policy] max_cpu" in err
    assert run(capsys, "show", "--tenant", "Acme")[0] == 2
    assert run(capsys, "check", str(tmp_path / "missing.json"))[0] == 2


def test_show_lists_each_value_with_where_it_is_set(capsys: pytest.CaptureFixture[str], policy: Path) -> None:
    code, out, err = run(capsys, "show", "--policy", str(policy), "--tenant", "acme", "--json")
    shown = json.loads(out)["policy"]
    assert code == 0
    assert shown["isolations"] == {
        "value": ["gvisor", "runc"],
        "where": f"{policy} [tenants.acme.policy] isolations",
    }
    assert shown["max_cpus"]["where"] == f"{policy} [default.policy] max_cpus"
    code, out, err = run(capsys, "show", "--policy", str(policy))
    assert (code, "policy.max_cpus" in out, "acme" in err) == (0, True, True)
    assert "IN USE" not in out, "only a gateway knows it"


def test_show_warns_of_a_pattern_that_matches_nothing_as_it_is_meant(
    capsys: pytest.CaptureFixture[str], policy: Path
) -> None:
    policy.write_text("[default.policy]\nimages = ['debian:12', 'ghcr.io/*']\n")
    for flags in ([], ["--json"]):
        code, _, err = run(capsys, "show", "--policy", str(policy), *flags)
        assert code == 0
        (warning,) = [line for line in err.splitlines() if line.startswith("warning")]
        assert f"{policy} [default.policy] images" in warning
        assert "'docker.io/library/debian:12'" in warning


def test_a_slip_in_the_name_of_the_tenant_is_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: Path
) -> None:
    for words in (("check", spec(tmp_path)), ("show",)):
        code, _, err = run(capsys, *words, "--policy", str(policy), "--tenant", "acne")
        assert code == 0
        assert "note: the defaults hold" in err
        assert "did you mean acme?" in err
        assert "note:" not in run(capsys, *words, "--policy", str(policy), "--tenant", "acme")[2]
