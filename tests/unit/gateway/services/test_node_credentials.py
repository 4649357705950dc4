"""The gateway's own files: its secret, and the lock on its directory."""

import stat
from pathlib import Path

import pytest

from gateway.errors import GatewayStartError, StoreError
from gateway.services.node_credentials import NodeDirectory, lock_state, node_secret
from gateway.store.db import Database


def test_the_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    first = node_secret(state)
    assert len(first) == 32
    assert node_secret(state) == first
    assert stat.S_IMODE((state / "node-secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert [path.name for path in state.iterdir()] == ["node-secret"]


@pytest.mark.parametrize("content", ["", "zz", "00"])
def test_a_broken_secret_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "node-secret").write_text(content)
    with pytest.raises(StoreError, match="node-secret"):
        node_secret(tmp_path)


def test_a_second_gateway_is_refused(tmp_path: Path) -> None:
    lock = lock_state(tmp_path)
    assert stat.S_IMODE((tmp_path / "gateway.lock").stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="another gateway uses"):
        lock_state(tmp_path)
    lock.close()
    lock_state(tmp_path).close()


def test_control_tokens_differ_by_node_and_by_gateway(tmp_path: Path) -> None:
    db = Database.open(f"sqlite:///{tmp_path / 'g.db'}")
    here, there = NodeDirectory(db, b"x" * 32), NodeDirectory(db, b"y" * 32)
    tokens = {here.control_token("a"), here.control_token("b"), there.control_token("a")}
    assert len(tokens) == 3
    assert here.control_token("a") in tokens
    db.close()


async def test_a_gateway_with_another_secret_on_the_same_database_is_refused(postgres_url: str) -> None:
    db = Database.open(postgres_url)
    for _ in range(2):
        await NodeDirectory(db, b"a" * 32).require_agreement()
    with pytest.raises(GatewayStartError):
        await NodeDirectory(db, b"b" * 32).require_agreement()
    await NodeDirectory(db, b"a" * 32).require_agreement()
    db.close()
