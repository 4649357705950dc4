"""User data of new machines: complete, small enough, valid, and without secrets but the join token."""

import base64
import json
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler import user_data
from autoscaler.errors import UserDataError
from autoscaler.user_data import NodeBoot, for_cloud_init, for_local, renderer
from providers.base import USER_DATA_LABEL

DIGEST = "5" * 64
BOOT = NodeBoot(
    gateway_url="http://10.0.0.2:8090",
    join_token="sbxj_secret",
    instance="fleet-cpu-abcdefgh2345",
    pool="cpu",
    role="sandbox",
    settings={"runtimes": ["runsc"], "slots": 40, "labels": {"team": "a b"}},
    bundle_sha256=DIGEST,
    default_route="10.0.0.1",
    resolvers=("185.12.64.1", "185.12.64.2"),
)


def document(boot: NodeBoot = BOOT) -> dict[str, Any]:
    text = user_data.for_cloud_init(boot)
    assert text.startswith("#cloud-config\n")
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def written(parsed: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Mode and content by path."""
    found = {}
    for item in parsed["write_files"]:
        content = item["content"]
        decoded = base64.b64decode(content).decode() if item.get("encoding") == "b64" else content
        found[item["path"]] = (item["permissions"], decoded)
    return found


def test_the_settings_and_the_token_are_for_root_only() -> None:
    files = written(document())
    for name in ("node.toml", "join.token", "bootstrap.env"):
        assert files[f"/etc/sandbox-fleet/{name}"][0] == "0600"
    assert files["/etc/sandbox-fleet/join.token"][1] == "sbxj_secret\n"


def test_a_node_learns_its_identity() -> None:
    parsed = tomllib.loads(written(document())["/etc/sandbox-fleet/node.toml"][1])
    assert parsed == {
        "gateway_url": "http://10.0.0.2:8090",
        "join_token_file": "/etc/sandbox-fleet/join.token",
        "root": "/var/lib/sandbox-fleet/node",
        "instance": BOOT.instance,
        "boot_stages_file": "/run/sandbox-fleet/boot-stages",
        "runtimes": ["runsc"],
        "slots": 40,
        "labels": {"pool": "cpu", "role": "sandbox", "team": "a b"},
    }


def test_the_token_is_in_one_file_only() -> None:
    text = user_data.for_cloud_init(BOOT)
    files = written(yaml.safe_load(text))
    assert "sbxj_secret" not in text
    assert [path for path, (_, content) in files.items() if "sbxj_secret" in content] == [
        "/etc/sandbox-fleet/join.token"
    ]


def test_values_cannot_break_out_of_the_environment_file(tmp_path: Path) -> None:
    evil = replace(BOOT, gateway_url="http://g/$(touch pwned)'\"", default_route="; touch pwned", resolvers=("`id`",))
    (tmp_path / "env").write_text(written(document(evil))["/etc/sandbox-fleet/bootstrap.env"][1])
    script = '. ./env; printf "%s\\n" "$GATEWAY_URL" "$BUNDLE_SHA256" "$DEFAULT_ROUTE" "$RESOLVERS"'
    said = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=10, check=True
    ).stdout.splitlines()
    assert said == [evil.gateway_url, DIGEST, "; touch pwned", "`id`"]
    assert not (tmp_path / "pwned").exists()


def test_an_instance_name_is_data_for_yaml() -> None:
    assert document(replace(BOOT, instance='x: "y" #'))["hostname"] == 'x: "y" #'


def test_user_data_larger_than_the_cloud_accepts_is_refused() -> None:
    large = replace(BOOT, settings={"labels": {f"k{number}": "v" * 200 for number in range(200)}})
    with pytest.raises(UserDataError, match="32768"):
        user_data.for_cloud_init(large)
    with pytest.raises(UserDataError, match="4096"):
        user_data.for_ucloud(large)


def test_an_ordinary_document_is_far_below_the_limit() -> None:
    assert len(user_data.for_cloud_init(BOOT).encode()) < user_data.MAX_CLOUD_INIT / 2
    assert len(user_data.for_ucloud(BOOT).encode()) < user_data.MAX_LABEL / 2


@pytest.mark.parametrize("kind", ["hetzner", "ucloud", "fog"])
def test_without_a_bundle_there_is_no_user_data(kind: str) -> None:
    with pytest.raises(UserDataError, match="sandboxes gateway bundle"):
        user_data.renderer(kind)(replace(BOOT, bundle_sha256=""))


def test_ucloud_and_cloud_init_write_the_same_files() -> None:
    parsed = json.loads(user_data.for_ucloud(BOOT))["files"]
    files = written(document())
    assert {f"/etc/sandbox-fleet/{name}": content for name, content in parsed.items()} == {
        path: content for path, (_, content) in files.items() if path.startswith("/etc/sandbox-fleet/")
    }


def test_both_ways_install_the_same_service_and_script() -> None:
    files = written(document())
    script = user_data.ucloud_init_script()
    for path in ("/usr/local/sbin/sandbox-fleet-bootstrap", "/etc/systemd/system/sandbox-fleet-bootstrap.service"):
        assert files[path][1] in script
    assert "@{" not in script


def test_the_init_script_reads_the_label_of_the_job(tmp_path: Path) -> None:
    """The part that runs on UCloud only, against a job description that has the label somewhere inside."""
    script = user_data.ucloud_init_script().partition("cat >/etc/systemd")[0]
    job = {"id": "1", "specification": {"labels": {"x": "y", USER_DATA_LABEL: user_data.for_ucloud(BOOT)}}}
    (tmp_path / "job.json").write_text(json.dumps([{"job": job}]))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ucloud").write_text(
        f'#!/bin/sh\n[ "$*" = "introspect job -json" ] && cat {tmp_path}/job.json\n'
    )
    (tmp_path / "bin" / "ucloud").chmod(0o755)
    config = tmp_path / "etc"
    (tmp_path / "init.sh").write_text(script.replace("CONFIG=/etc/sandbox-fleet", f"CONFIG={config}"))
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    subprocess.run(["bash", str(tmp_path / "init.sh")], env={"PATH": path}, timeout=30, check=True)
    assert {entry.name: entry.read_text() for entry in config.iterdir()} == json.loads(user_data.for_ucloud(BOOT))[
        "files"
    ]
    assert {entry.stat().st_mode & 0o777 for entry in config.iterdir()} == {0o600}


def test_a_local_node_gets_its_settings_and_its_token_apart() -> None:
    settings = {"slots": 3, "runtimes": ["runsc"], "docker_url": 'a"b\\c', "labels": {"x": "y"}, "root": "${dir}/r"}
    boot = NodeBoot("http://gw/$x", "to$ken", "d-cpu-a", "cpu", "sandbox", settings)
    files = {file["path"]: file for file in json.loads(for_local(boot))["files"]}
    assert set(files) == {"node.toml", "join.token"}
    assert files["join.token"] == {"path": "join.token", "content": "to$$ken\n", "mode": 0o600}
    written = tomllib.loads(files["node.toml"]["content"])
    assert written == {
        "gateway_url": "http://gw/$$x",
        "join_token_file": "${dir}/join.token",
        "root": "${dir}/r",
        "host": "${address}",
        "port": 0,
        "instance": "d-cpu-a",
        "slots": 3,
        "runtimes": ["runsc"],
        "docker_url": 'a"b\\c',
        "labels": {"x": "y", "pool": "cpu", "role": "sandbox"},
    }


def test_machines_of_a_plugin_get_a_cloud_init_document() -> None:
    assert renderer("fog") is for_cloud_init
