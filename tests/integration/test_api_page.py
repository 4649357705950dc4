"""The worked session of docs/api.md, run as it stands against a gateway and a node over the fake runtime."""

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.states import SandboxState
from tests.gateway_process import ROOT
from tests.integration.small_fleet import small_fleet

pytestmark = pytest.mark.timeout(120)


def answers(text: str) -> list[Any]:
    """The JSON values of ``text``, one after the other."""
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_the_session_on_the_page_works(tmp_path: Path) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), flags=re.DOTALL)
    with small_fleet(tmp_path) as fleet:
        ran = subprocess.run(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env={**os.environ, "URL": fleet.gateway.url, "TOKEN": fleet.client_token},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert fleet.operator.sandbox("demo").state is SandboxState.DELETED
    created, quick, fed, events, *stream, put, listed, logs, deleted = answers(ran.stdout)
    assert created["sandbox"]["labels"] == {"job": "17"}
    assert (quick["session"]["exit_code"], [event["stream"] for event in quick["events"]]) == (
        3,
        ["status", "stdout", "exit"],
    )
    assert fed["session"]["id"] == events["session"]["id"]
    said = "".join(line["event"]["data"] for line in stream if line.get("event", {}).get("stream") == "stdout")
    assert (said, stream[-1]["session"]["status"]) == ("some input\ndone\n", "exited")
    assert put["size"] == len((tmp_path / "download.txt").read_bytes()) == len("a file\n")
    assert [sandbox["id"] for sandbox in listed["sandboxes"]] == ["demo"]
    assert base64.b64decode(logs["data"]) == b"ready\n"
    assert deleted["deleted"]["id"] == "demo"
