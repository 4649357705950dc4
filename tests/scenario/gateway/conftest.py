"""A world on SQLite, and on PostgreSQL too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.scenario.gateway.world import World, settings_for, world


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """URL of an empty database; ``None`` for the SQLite file of the settings."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def here(tmp_path: Path, database_url: str | None) -> AsyncIterator[World]:
    """A running gateway without nodes, at a standing clock."""
    async with world(settings_for(tmp_path, database_url)) as running:
        yield running
