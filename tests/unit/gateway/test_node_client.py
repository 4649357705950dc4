"""What becomes of a node's answers, and of its silence."""

from collections.abc import AsyncIterator

import pytest

from gateway.core.model import NodeAddress
from gateway.errors import ApiError
from gateway.node_client import NodeCall, NodeClient
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import OrderAnswer
from tests.fakes.scripted import Drop, Reply, ScriptedServer
from tests.fakes.scripted_node import refusal
from tests.fakes.serving import stopped_server

READ = NodeCall("GET", "/x", timeout=5.0)
START = NodeCall("POST", "/x", body=b"{}", timeout=5.0, repeatable=False)


@pytest.fixture
async def client() -> AsyncIterator[NodeClient]:
    async with NodeClient() as running:
        yield running


def at(url: str) -> NodeAddress:
    return NodeAddress("node-1", url, "control")


async def failed(client: NodeClient, url: str, call: NodeCall = READ) -> ApiError:
    """Return the error of a call."""
    with pytest.raises(ApiError) as caught:
        await client.fetch(at(url), call)
    return caught.value


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        (ErrorCode.FILE_NOT_FOUND, ErrorCode.FILE_NOT_FOUND),
        (ErrorCode.EXEC_NOT_FOUND, ErrorCode.EXEC_NOT_FOUND),
        (ErrorCode.EXEC_LIMIT, ErrorCode.EXEC_LIMIT),
        (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST),
        (ErrorCode.SANDBOX_NOT_FOUND, ErrorCode.SANDBOX_NOT_RUNNING),
        (ErrorCode.UNAUTHORIZED, ErrorCode.NODE_UNREACHABLE),
        (ErrorCode.FORBIDDEN, ErrorCode.NODE_UNREACHABLE),
        (ErrorCode.NOT_FOUND, ErrorCode.NODE_UNREACHABLE),
        (ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.NODE_UNREACHABLE),
    ],
)
async def test_a_refusal_keeps_its_code_unless_it_is_about_the_gateway(
    client: NodeClient, code: ErrorCode, becomes: ErrorCode
) -> None:
    answer = refusal(code, "the node says no")
    reply = Reply(answer.status_code, bytes(answer.body), {"Retry-After": "7"})
    with ScriptedServer(lambda _: reply) as node:
        error = await failed(client, node.url)
    assert error.code is becomes
    assert "the node says no" in error.message
    assert becomes is not code or error.retry_after == 7


@pytest.mark.parametrize("reply", [Reply(502, b"<html>bad gateway</html>"), Reply(500, b""), Reply(302, b"{}")])
async def test_an_answer_outside_the_protocol_is_a_node_out_of_reach(client: NodeClient, reply: Reply) -> None:
    with ScriptedServer(lambda _: reply) as node:
        error = await failed(client, node.url)
    assert (error.code, error.retryable) == (ErrorCode.NODE_UNREACHABLE, True)


async def test_an_answer_that_is_no_model_is_a_node_out_of_reach(client: NodeClient) -> None:
    with ScriptedServer(lambda _: Reply(200, b'{"sandbox": 1}')) as node, pytest.raises(ApiError) as caught:
        await client.fetch_model(at(node.url), READ, OrderAnswer)
    assert caught.value.code is ErrorCode.NODE_UNREACHABLE


async def test_an_answer_beyond_the_bound_is_refused(client: NodeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.node_client.MAX_ERROR", 1000)
    with ScriptedServer(lambda _: Reply(404, bytes(limits.MIB))) as node:
        assert (await failed(client, node.url)).code is ErrorCode.NODE_UNREACHABLE


@pytest.mark.parametrize("url", ["http://[bad", "nonsense", "http://", "ftp://127.0.0.1:9", "http://127.0.0.1:99999"])
async def test_a_url_that_is_none(client: NodeClient, url: str) -> None:
    error = await failed(client, url, START)
    assert (error.code, error.retryable) == (ErrorCode.NODE_UNREACHABLE, True)


@pytest.mark.parametrize("call", [READ, START])
async def test_where_nothing_was_sent_any_call_may_be_repeated(client: NodeClient, call: NodeCall) -> None:
    error = await failed(client, "http://127.0.0.1:9", call)
    assert (error.code, error.retryable) == (ErrorCode.NODE_UNREACHABLE, True)
    assert (error.body().begun, error.retry_after) == (False, 2)
    assert "Connection refused; nothing was begun, and its sandboxes live on" in error.message
    assert "127.0.0.1" not in error.message, "addresses of nodes are for operators only"


@pytest.mark.parametrize("call", [READ, START])
async def test_a_call_that_broke_off_may_be_repeated_only_where_it_does_no_harm(
    client: NodeClient, call: NodeCall
) -> None:
    with ScriptedServer(lambda _: Drop()) as node:
        error = await failed(client, node.url, call)
    assert (error.code, error.retryable) == (ErrorCode.NODE_UNREACHABLE, call.repeatable)
    assert (error.retry_after is not None) == call.repeatable
    assert error.body().begun is None


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_node_that_hangs_times_out(client: NodeClient, repeatable: bool) -> None:
    with stopped_server() as url:
        error = await failed(client, url, NodeCall("GET", "/x", timeout=0.1, repeatable=repeatable))
    assert (error.code, error.retryable) == (ErrorCode.TIMEOUT, repeatable)


async def test_a_body_that_the_node_does_not_take_times_out(client: NodeClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield bytes(limits.MIB)

    with stopped_server() as url:
        error = await failed(client, url, NodeCall("PUT", "/x", body=chunks(), timeout=0.1))
    assert (error.code, error.retryable) == (ErrorCode.TIMEOUT, True)
