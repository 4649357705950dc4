"""A database of an earlier version is brought to this one, with everything that is in it."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from gateway.core.model import Node
from gateway.store import db, nodes
from gateway.store.db import Database, make_engine

NOW = "2026-01-02 03:04:05.000000"


def at_version(url: str, revision: str) -> None:
    """Makes a database as that version left it, with a node and a join token."""
    engine = make_engine(url)
    config = Config()
    config.set_main_option("script_location", str(Path(db.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.execute(
            text(
                "INSERT INTO nodes (id, version, instance, pool, state, node_url, agent_version, total, runtimes,"
                " pressure, draining, agent_draining, registered_at, beats, sequence)"
                f" VALUES ('n', 1, 'vm', 'cpu', 'ready', 'http://n', '1', :total, '[]', '{{}}', 0, 0, '{NOW}', 3, 7)"
            ),
            {"total": json.dumps({"cpus": 4})},
        )
        connection.execute(
            text(
                "INSERT INTO join_tokens (id, sha256, instance, pool, created_at, expires_at)"
                f" VALUES ('t', 'hash', 'vm', 'cpu', '{NOW}', '{NOW}')"
            )
        )
    engine.dispose()


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004"])
async def test_rows_survive(tmp_path: Path, revision: str) -> None:
    url = f"sqlite:///{tmp_path / 'gateway.db'}"
    at_version(url, revision)
    database = Database.open(url)
    try:
        node = await database.read(lambda session: nodes.get(session, "n"))
        grant = await database.read(lambda session: nodes.grant_of(session, "hash"))
    finally:
        database.close()
    assert isinstance(node, Node) and grant is not None
    assert (node.total.cpus, node.sequence, node.operation_id, node.stages, node.role) == (4, 7, None, None, "sandbox")
    assert (grant.instance, grant.operation_id, grant.role) == ("vm", None, "sandbox")
    assert grant.expires_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
