"""The node's API over real HTTP and the fake runtime."""

from collections.abc import Iterator

import pytest

from tests.fakes.node import NodeUnderTest, served


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    with served(tmp_path_factory.mktemp("node")) as under_test:
        yield under_test
        for sandbox in under_test.runtime.found():
            under_test.runtime.delete(sandbox.order.sandbox_id)


@pytest.fixture(scope="module")
def box(node: NodeUnderTest) -> str:
    assert node.create("box").status_code == 200
    return "box"


def test_smoke(node: NodeUnderTest, box: str) -> None:
    answer = node.exec(box, ["echo", "hi"])
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["session"]["exit_code"] == 0
    assert [e["stream"] for e in told["events"]] == ["status", "stdout", "exit"]
    put = node.call("PUT", f"/v1/sandboxes/{box}/files", params={"path": "a/b c"}, data=b"x" * 3_000_000)
    assert put.status_code == 200, put.text
    got = node.call("GET", f"/v1/sandboxes/{box}/files", params={"path": "a/b c"})
    assert got.status_code == 200 and got.content == b"x" * 3_000_000
