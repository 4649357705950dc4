"""The Docker engine's API: a client for each thread, and the engine's errors as the port's."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure

TIMEOUT: Final = 60  # seconds for one call; every call but `wait` ends by itself
_OLDEST: Final = "1.41"  # Docker 20.10

__all__ = ["APIError", "Api", "NotFound"]


class Api:
    """Clients of one engine; they are not safe to share between threads (docker/docker-py issue 3229)."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._local = threading.local()
        self._lock = threading.Lock()
        self._version: str | None = None
        # A thread that ends lets its client go, and that closes its connections.
        self._open: weakref.WeakSet[docker.APIClient] = weakref.WeakSet()

    def new_client(self) -> docker.APIClient:
        """A client that the caller closes.

        Raises:
            DockerException: the engine cannot be reached.
        """
        with self._lock:
            version = self._version
        client = docker.APIClient(base_url=self.base_url, version=version or "auto", timeout=TIMEOUT)
        with self._lock:
            self._version = client.api_version
        return client

    @property
    def client(self) -> Any:
        """This thread's client.  Untyped, because most of the SDK is.

        Raises:
            DockerException: the engine cannot be reached.
        """
        if not hasattr(self._local, "client"):
            client = self.new_client()
            self._local.client = client
            with self._lock:
                self._open.add(client)
        return self._local.client

    @cached_property
    def uses_cgroupfs(self) -> bool:
        """Whether the engine takes a plain path as a container's parent cgroup; with systemd it must be a slice."""
        with calling("information about the Docker engine"):
            return bool(self.client.info()["CgroupDriver"] == "cgroupfs")

    @property
    def version(self) -> str:
        """Version of the API that client and engine agreed on."""
        return self._version or _OLDEST

    def close(self) -> None:
        """Closes the clients of all threads."""
        with self._lock:
            clients = list(self._open)
        self._local = threading.local()
        for client in clients:
            client.close()


def explained(error: Exception) -> str:
    """The engine's own sentence."""
    if isinstance(error, APIError) and error.explanation:
        return str(error.explanation)
    return str(error)


@contextlib.contextmanager
def calling(what: str, code: ErrorCode = ErrorCode.INTERNAL) -> Iterator[None]:
    """Turns the SDK's errors into the port's.

    Raises:
        RuntimeFailure: ``code`` when the engine refused; ``BUSY`` when it did not answer.
    """
    try:
        yield
    except APIError as error:
        raise RuntimeFailure(code, f"{what}: Docker refused: {explained(error)}") from error
    except (DockerException, requests.RequestException) as error:
        raise RuntimeFailure(ErrorCode.BUSY, f"{what}: the Docker engine did not answer: {error}") from error
