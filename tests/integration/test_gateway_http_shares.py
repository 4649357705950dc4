"""One greedy tenant at the gateway: the others go on as if it were not there."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import aiohttp
import pytest
import requests

from gateway.wire import limits
from gateway.wire.tokens import TokenRequest, TokenScope
from tests.integration.gateway_http import SESSION, HttpGateway, running_gateway

MIB = limits.MIB


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), max_requests=32) as under_test:
        yield under_test


def victim(gateway: HttpGateway) -> dict[str, str]:
    """Return the headers of another tenant's client."""
    request = TokenRequest(name="victim", scope=TokenScope.CLIENT, tenant="victim")
    return {"Authorization": f"Bearer {gateway.loop.call(gateway.services.tokens.make(request)).token}"}


async def test_long_polls_leave_room_for_other_tenants(gateway: HttpGateway) -> None:
    headers = victim(gateway)
    gateway.new_script()
    path = f"/v1/exec/{SESSION}/events?wait_seconds=15"
    async with aiohttp.ClientSession(gateway.url, headers=gateway.client) as session:

        async def poll() -> int:
            async with session.get(path) as answer:
                return answer.status

        polls = [asyncio.ensure_future(poll()) for _ in range(40)]
        _, held = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        answer = await asyncio.to_thread(gateway.call, "GET", "/v1/sandboxes", headers=headers)
        gateway.loop.soon(gateway.script.release.set)
        statuses = await asyncio.gather(*polls)

    assert answer.status_code == 200
    assert held
    assert set(statuses) == {200, 503}


@contextlib.contextmanager
def slow_bodies(gateway: HttpGateway, count: int) -> Iterator[list[socket.socket]]:
    """Begin calls whose bodies of 16 MiB do not come to their end."""
    head = (
        "POST /v1/sandboxes HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        f"Content-Length: {16 * MIB}\r\nAuthorization: Bearer {gateway.secrets[TokenScope.CLIENT]}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(gateway.address)) for _ in range(count)]
        for connection in made:
            connection.sendall(head.encode() + b"[")
        yield made


def test_bodies_in_memory_are_bounded_for_a_tenant_and_leave_room_for_others(gateway: HttpGateway) -> None:
    spec = {"id": "box", "image": "alpine", "env": {"X": "x" * 100_000}}

    def create(headers: dict[str, str]) -> requests.Response:
        return gateway.call("POST", "/v1/sandboxes", json=spec, headers=headers)

    with slow_bodies(gateway, 8):
        large = gateway.call("POST", "/v1/sandboxes", data=b"[" + b" " * (16 * MIB - 1))
        assert create(victim(gateway)).status_code == 201

    assert (large.status_code, large.json()["code"], large.headers["retry-after"]) == (503, "busy", "2")
