"""A world on SQLite, and on PostgreSQL too when ``SANDBOXES_TEST_POSTGRES`` names an empty database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.scenario.gateway.world import POSTGRES, World, empty, settings_for, world


@pytest.fixture(params=["sqlite", *(["postgresql"] if POSTGRES else [])])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """URL of an empty database; ``None`` for the SQLite file of the settings."""
    if request.param == "sqlite":
        return None
    assert POSTGRES is not None
    empty(POSTGRES)
    return POSTGRES


@pytest.fixture
async def here(tmp_path: Path, database_url: str | None) -> AsyncIterator[World]:
    """A running gateway without nodes, at a standing clock."""
    async with world(settings_for(tmp_path, database_url)) as running:
        yield running
