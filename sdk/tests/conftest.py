"""A fake gateway on a real socket, and a client of it that does not really sleep between tries."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.fakes.gateway import TOKEN, Gateway
from ucloud_sandboxes_sdk import Image, SandboxClient, SandboxHandle, SandboxSpec

IMAGE = Image.from_registry("busybox:1.36")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as running:
        yield running


@pytest.fixture
def naps() -> list[float]:
    """How long the client would have slept, nap by nap."""
    return []


@pytest.fixture
def client(gateway: Gateway, naps: list[float]) -> Iterator[SandboxClient]:
    with SandboxClient(gateway.url, api_token=TOKEN) as made:
        made.transport.sleep = naps.append
        made.transport.chance = lambda: 0.5
        yield made


_numbers = count()


@pytest.fixture
def sandbox(client: SandboxClient) -> SandboxHandle:
    return client.create_sandbox(SandboxSpec(id=f"box-{next(_numbers)}", image=IMAGE))
