"""Fixtures of the node agent's integration tests."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.fakes.node import NodeUnderTest, served


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    """Serve a node that the tests of a module share."""
    with served(tmp_path_factory.mktemp("node")) as under_test:
        yield under_test
        under_test.remove_all()


@pytest.fixture(scope="module")
def box(node: NodeUnderTest) -> str:
    """Return a running sandbox that the tests of a module share."""
    answer = node.create("box")
    assert answer.status_code == 200, answer.text
    return "box"


@pytest.fixture
def fresh() -> str:
    """Return an id that no test has used."""
    return f"s-{uuid4().hex[:8]}"
