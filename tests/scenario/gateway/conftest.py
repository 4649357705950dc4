"""A world on SQLite, and on PostgreSQL too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.scenario.gateway.world import Fleet, ManualClock, World, both_listen, settings_for, world


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """URL of an empty database; ``None`` for the SQLite file of the settings."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def here(tmp_path: Path, database_url: str | None) -> AsyncIterator[World]:
    """A running gateway without nodes, at a standing clock."""
    async with world(settings_for(tmp_path, database_url)) as running:
        yield running


@pytest.fixture
async def pair(tmp_path: Path, postgres_url: str) -> AsyncIterator[tuple[World, World]]:
    """Two gateways on one PostgreSQL, with one fleet and one clock."""
    fleet, clock = Fleet(), ManualClock()
    async with (
        world(settings_for(tmp_path / "1", postgres_url), fleet, clock) as one,
        world(settings_for(tmp_path / "2", postgres_url), fleet, clock) as two,
    ):
        await both_listen(postgres_url)
        yield one, two
