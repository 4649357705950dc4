"""How the end of a container is noticed by whoever waits for something inside it.

Docker leaves the stream of an exec open when the container under gVisor is killed or removed, so the stream alone
would be waited on for ever.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import requests
from docker.errors import DockerException

from node_agent.runtime.docker_engine import container_config
from node_agent.runtime.docker_engine.client import Api

log = logging.getLogger(__name__)

_EVENTS: Final = ["die", "destroy"]

Callback = Callable[[], None]


class ContainerExits:
    """Follows the engine's events, on one thread, as long as somebody waits for one."""

    def __init__(self, api: Api, tag: str) -> None:
        self._api = api
        self._filters = {"type": "container", "event": _EVENTS, "label": f"{container_config.LABEL}={tag}"}
        self._lock = threading.Lock()
        self._callbacks: dict[str, list[Callback]] = {}
        self._stream: Any = None

    def register(self, container: str, callback: Callback) -> Callback:
        """Call ``callback`` once the container ends or the engine goes away.

        Returns:
            A function that takes this back.

        Raises:
            DockerException: the engine cannot be reached.
        """
        with self._lock:
            if self._stream is None:
                self._follow()
            self._callbacks.setdefault(container, []).append(callback)
        return lambda: self._forget(container, callback)

    def close(self) -> None:
        """End the thread; whoever waits is called."""
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.close()

    def _follow(self) -> None:
        client = self._api.new_client()
        try:
            # The engine repeats what happened since then, so nothing is missed while the call is on its way.
            self._stream = client.events(since=int(time.time()) - 1, filters=self._filters, decode=True)
        except BaseException:
            client.close()
            raise
        threading.Thread(target=self._listen, args=(client, self._stream), name="docker-exits", daemon=True).start()

    def _listen(self, client: Any, stream: Iterator[dict[str, Any]]) -> None:
        try:
            for event in stream:
                self._call(event["id"])
        except (DockerException, requests.RequestException, OSError, ValueError) as error:
            log.warning("the Docker engine's events broke off: %s", error)
        finally:
            client.close()
            with self._lock:
                self._stream = None
                left = list(self._callbacks)
            for container in left:
                self._call(container)

    def _call(self, container: str) -> None:
        with self._lock:
            callbacks = self._callbacks.pop(container, [])
        for callback in callbacks:
            callback()

    def _forget(self, container: str, callback: Callback) -> None:
        with self._lock, contextlib.suppress(KeyError, ValueError):
            self._callbacks[container].remove(callback)
            if not self._callbacks[container]:
                del self._callbacks[container]
