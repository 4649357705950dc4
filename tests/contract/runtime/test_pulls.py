"""What a pull reaches: real engines, and real registries on this machine."""

import threading
import uuid
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
from node_agent.host.firewall import PullFirewall
from node_agent.host.images import Images
from tests.contract.runtime.lab import Lab
from tests.engines.dockerd import Daemon

OPENED = AddressPolicy(opened=(ip_network("127.0.0.1/32"),))


class Registry(ThreadingHTTPServer):
    """A server on this machine that counts what it is asked, and has no image.

    With ``token_service`` it asks for a token from there; with ``elsewhere`` it sends on to there.
    """

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.asked: list[str] = []
        self.token_service: str | None = None
        self.elsewhere: str | None = None

    @property
    def name(self) -> str:
        """Host and port."""
        return f"{self.server_address[0]!s}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.token_service is not None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", f'Bearer realm="http://{self.server.token_service}/token",service="s"')
        elif self.server.elsewhere is not None and self.path != "/v2/":
            self.send_response(307)
            self.send_header("Location", f"http://{self.server.elsewhere}{self.path}")
        else:
            self.send_response(200 if self.path == "/v2/" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815 - the base class calls it

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def registry(host: str = "127.0.0.1") -> Iterator[Registry]:
    """Serve inside the block."""
    with Registry(host) as server:
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
        images = Images(lambda: client, OPENED)
        with pytest.raises(RuntimeFailure) as failure:
            images.resolve(f"{opened.name}/not/there:1")

    assert failure.value.code is ErrorCode.IMAGE_ERROR
    assert opened.asked, failure.value.message


@pytest.mark.parametrize("way", ["token_service", "elsewhere"])
@pytest.mark.parametrize("held", [True, False], ids=["held", "not-held"])
def test_a_registry_cannot_send_the_engine_to_a_closed_address(
    client: docker.APIClient, docker_daemon: Daemon, way: str, held: bool
) -> None:
    """Without the firewall it can: so the canary is where the engine would go."""
    firewall = PullFirewall(f"t{uuid.uuid4().hex[:8]}", docker_daemon.url, OPENED)
    images = Images(lambda: client, OPENED, firewall if held else None)
    try:
        with registry() as opened, registry("127.0.0.2") as canary:
            setattr(opened, way, canary.name)
            with pytest.raises(RuntimeFailure) as failure:
                images.resolve(f"{opened.name}/not/there:1")
    finally:
        removed = images.release()

    assert failure.value.code is ErrorCode.IMAGE_ERROR
    assert opened.asked
    assert bool(canary.asked) is not held
    assert removed == ([f"nft table inet {firewall.table}"] if held else [])
    assert images.release() == []


def test_an_image_is_found_by_its_own_name_or_whole_id_alone(lab: Lab, client: docker.APIClient) -> None:
    name = lab.images.busybox
    whole = client.inspect_image(name)["Id"]
    digits = whole.removeprefix("sha256:")
    # Docker itself takes each of these for the image: a part of its id, and its repository with that for a tag.
    for text in (digits[:12], digits[:1], f"sha256:{digits[:12]}", f"{name.partition(':')[0]}:{digits[:12]}"):
        order = lab.order(image=text)
        with pytest.raises(RuntimeFailure) as failure:
            lab.runtime.create(order)
        lab.runtime.delete(order.sandbox_id)
        assert failure.value.reason is DeathReason.IMAGE_ERROR, text
    with lab.sandbox(image=whole):
        pass
    # Takes away what holds pulls inside: the other tests here have registries at closed addresses.
    lab.runtime.sweep()
