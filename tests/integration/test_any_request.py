"""Whatever the OpenAPI document admits, and what it does not: every answer is one that the document describes.

Needs no engine: the gateway is the real one, over a node that answers in the protocol.  The long form runs in `make
soak`; a failure names a `curl` that repeats it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gateway.wire.tokens import TOKEN_HEADER, TokenScope
from tests.fakes.polite_node import PoliteNode
from tests.integration.gateway_http import HttpGateway, LogLines, running_gateway

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
    "unsupported_method",
)
# A fleet without room answers 503, as documented; any other answer above 499 is a fault.
CONFIG: Final = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503]
"""
SCOPES: Final = (TokenScope.CLIENT, TokenScope.OPERATOR)
SHORT_SEED: Final = "20"
SOAK_SECONDS: Final = int(os.environ.get("SANDBOXES_SOAK_API_SECONDS", "600"))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[HttpGateway]:
    # A create that finds no room is not waited for as long as usual.
    settings = {"create_wait": 1.0, "delete_wait": 0.5}
    with running_gateway(tmp_path / "gateway", settings=settings, node=PoliteNode()) as running:
        yield running


def call_everything(gateway: HttpGateway, scope: TokenScope, directory: Path, *options: str) -> None:
    """Call every route with the token of this scope, and fail with what is not as the document says.

    Args:
        gateway: answers.
        scope: of the token.
        directory: where the tool's settings and caches go.
        options: more options of the tool.
    """
    (directory / "schemathesis.toml").write_text(CONFIG)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{gateway.url}/openapi.json"),
        *("--header", f"{TOKEN_HEADER}: {gateway.secrets[scope]}", "--checks", ",".join(CHECKS)),
        *("--continue-on-failure", "--no-shrink", "--suppress-health-check", "all", "--warnings", "off"),
        *("--request-timeout", "40", "--generation-database", "none"),
        *("--generation-with-security-parameters", "false", *options),
    ]
    with LogLines("gateway.http") as lines:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=3600)
        unhandled = [record.getMessage() for record in lines.seen() if record.exc_info]
    print(done.stdout.partition("= SUMMARY =")[2])  # `make soak` shows it
    assert unhandled == []
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2000:]


@pytest.mark.parametrize("scope", SCOPES)
def test_every_answer_is_as_the_document_says(gateway: HttpGateway, scope: TokenScope, tmp_path: Path) -> None:
    call_everything(gateway, scope, tmp_path, "--seed", SHORT_SEED, "--phases", "fuzzing", "--max-examples", "5")


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 300)
@pytest.mark.parametrize("scope", SCOPES)
def test_every_answer_is_as_the_document_says_for_long(gateway: HttpGateway, scope: TokenScope, tmp_path: Path) -> None:
    seconds = str(max(1, SOAK_SECONDS // len(SCOPES)))
    call_everything(gateway, scope, tmp_path, "--max-time", seconds, "--max-examples", "100000")
