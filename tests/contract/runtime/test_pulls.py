"""What a pull reaches: real engines, and real registries on this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network

import docker
import pytest

from gateway.wire.closed_ranges import AddressPolicy
from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.images import Images
from tests.contract.runtime.lab import Lab


class Registry(ThreadingHTTPServer):
    """A server on this machine that counts what it is asked, and has no image."""

    asked: list[str]

    @property
    def name(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815 - the base class calls it

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def registry() -> Iterator[Registry]:
    """Serve inside the block."""
    with Registry(("127.0.0.1", 0), _Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_registry_on_the_node_itself_is_never_asked(lab: Lab) -> None:
    with registry() as canary:
        order = lab.order(image=f"{canary.name}/not/there:1")
        with pytest.raises(RuntimeFailure) as failure:
            lab.runtime.create(order)
        lab.runtime.delete(order.sandbox_id)

    assert canary.asked == []
    assert (failure.value.code, failure.value.reason) == (ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR)
    assert "open_ranges" in failure.value.message


def test_a_registry_that_the_operator_opened_is_asked(client: docker.APIClient) -> None:
    with registry() as opened:
        images = Images(lambda: client, AddressPolicy(opened=(ip_network("127.0.0.1/32"),)))
        with pytest.raises(RuntimeFailure) as failure:
            images.resolve(f"{opened.name}/not/there:1")

    assert failure.value.code is ErrorCode.IMAGE_ERROR
    assert opened.asked
