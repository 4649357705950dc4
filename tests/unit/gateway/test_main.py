"""Bounds that follow from the limits of the machine, and a start that fails."""

from pathlib import Path

import pytest

from gateway.errors import GatewayStartError
from gateway.http.app import MAX_REQUESTS
from gateway.main import most_requests, run
from gateway.settings import GatewaySettings
from gateway.store import failures
from gateway.store.db import Database


@pytest.mark.parametrize(
    ("files", "requests"), [(1024, 256), (4096, 1792), (10**6, MAX_REQUESTS), (600, 44), (100, 1), (0, 1)]
)
def test_requests_never_need_more_descriptors_than_there_are(files: int, requests: int) -> None:
    assert most_requests(files) == requests


def test_a_database_that_goes_away_during_the_start_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise failures.away()

    monkeypatch.setattr(Database, "read", away)
    with pytest.raises(GatewayStartError, match="does not answer now"):
        run(GatewaySettings(state_dir=tmp_path, port=0))
