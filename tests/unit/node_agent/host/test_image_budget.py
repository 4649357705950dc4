"""Images share a bounded part of the disk, and the longest unused makes room."""

import os
import time
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.image_budget import ImageBudget, Kind

OLD = 1000.0


class Store:
    """A budget of 100 MiB over images that are only names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.budget = ImageBudget(directory, 100)
        self.in_use: set[str] = set()
        self.removed: list[str] = []
        for kind in Kind:
            self.budget.remove_with(kind, self._remove)

    def _remove(self, image_id: str) -> bool:
        if image_id not in self.in_use:
            self.removed.append(image_id)
        return image_id not in self.in_use

    def has(self, name: str, size_mb: int, *, unused: float = OLD, kind: Kind = Kind.UNPACKED) -> None:
        """Store an image that was last used so many seconds ago."""
        self.budget.add(kind, f"sha256:{name}", size_mb)
        at = time.time() - unused
        os.utime(self.directory / f"{kind}-{name}.json", (at, at))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "images")


def test_the_longest_unused_image_makes_room(store: Store) -> None:
    store.has("a", 30, unused=OLD + 1)
    store.has("b", 30, unused=OLD + 3)
    store.has("c", 30, unused=OLD + 2, kind=Kind.PULLED)

    store.budget.make_room("new", 50)

    assert store.removed == ["sha256:b", "sha256:c"]
    assert ImageBudget(store.directory).used_mb() == 30


def test_nothing_goes_while_there_is_room(store: Store) -> None:
    store.has("a", 50)
    store.budget.make_room("new", 50)
    assert store.removed == []


def test_an_image_in_use_stays_and_the_next_one_goes(store: Store) -> None:
    store.has("a", 50, unused=OLD + 1)
    store.has("b", 50)
    store.in_use.add("sha256:a")

    store.budget.make_room("new", 10)

    assert store.removed == ["sha256:b"]


def test_another_node_is_asked_while_images_in_use_take_all(store: Store) -> None:
    store.has("a", 60)
    store.has("b", 40, unused=0)  # some create has just asked for it
    store.in_use.add("sha256:a")

    with pytest.raises(RuntimeFailure) as caught:
        store.budget.make_room("new", 10)

    assert caught.value.code is ErrorCode.NODE_REFUSED
    assert store.removed == []


def test_an_image_larger_than_all_may_be_is_refused_for_good(store: Store) -> None:
    store.has("a", 60)
    with pytest.raises(RuntimeFailure) as caught:
        store.budget.make_room("new", 101)
    assert (caught.value.code, store.removed) == (ErrorCode.IMAGE_ERROR, [])


def test_a_use_makes_an_image_young(store: Store) -> None:
    store.has("a", 50, unused=OLD + 1)
    store.has("b", 50)
    store.budget.touch(Kind.UNPACKED, "sha256:a")
    store.budget.touch(Kind.UNPACKED, "sha256:unknown")

    store.budget.make_room("new", 10)

    assert store.removed == ["sha256:b"]


def test_without_a_limit_nothing_goes(tmp_path: Path) -> None:
    budget = ImageBudget(tmp_path)
    budget.add(Kind.PULLED, "sha256:a", 10**6)
    budget.make_room("new", 10**6)
    assert budget.used_mb() == 10**6
