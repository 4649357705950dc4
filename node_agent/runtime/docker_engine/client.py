"""The Docker engine's API: a client for each thread, upgraded connections, and the engine's errors as the port's.

An upgraded connection carries the streams of an exec or attach.  The SDK reads it from the raw socket, although the
HTTP parser may already have buffered its first frames together with the headers, and so loses them now and then
(docker/docker-py issues 2042 and 3332).  Here one buffered reader reads the headers and the frames.
"""

import contextlib
import http.client
import json
import socket
import struct
import threading
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import docker
import requests
from docker.errors import APIError, DockerException

from gateway.wire.errors import ErrorCode
from gateway.wire.limits import EXEC_CHUNK
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.engine_errors import explanation, refusal
from node_agent.runtime.base import Stream

TIMEOUT: Final = 60  # seconds for one call; every call but `wait` ends by itself
_USER_NAMESPACES: Final = frozenset({"name=userns", "name=rootless"})
_OLDEST: Final = "1.41"  # Docker 20.10


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
        """Return a new client, which the caller closes.

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

    @cached_property
    def has_user_namespaces(self) -> bool:
        """Whether root of a container is another user on the host (``userns-remap``, or a rootless engine)."""
        with calling("information about the Docker engine"):
            return not _USER_NAMESPACES.isdisjoint(self.client.info().get("SecurityOptions") or ())

    @property
    def version(self) -> str:
        """Version of the API that client and engine agreed on."""
        return self._version or _OLDEST

    def close(self) -> None:
        """Close the clients of all threads."""
        with self._lock:
            clients = list(self._open)
        self._local = threading.local()
        for client in clients:
            client.close()


@contextlib.contextmanager
def calling(what: str, code: ErrorCode = ErrorCode.INTERNAL, *, reason: DeathReason | None = None) -> Iterator[None]:
    """Turn the SDK's errors into the port's.

    Args:
        what: names the call in the sentence.
        code: of a refusal by the engine.
        reason: why the sandbox is dead, where such a refusal kills it.

    Raises:
        RuntimeFailure: ``code`` when the engine refused; ``BUSY`` when it did not answer, or its containerd did not;
            ``DISK_FULL`` when the host's disk is full.
    """
    try:
        yield
    except APIError as error:
        raise refusal(what, f"Docker refused: {explanation(error)}", code, reason) from error
    except (DockerException, requests.RequestException) as error:
        raise RuntimeFailure(ErrorCode.BUSY, f"{what}: the Docker engine did not answer: {error}") from error


_HEADER: Final = struct.Struct(">BxxxL")  # stream number, three zero bytes, length: Docker's "multiplexed stream"
_STREAMS: Final = {1: Stream.STDOUT, 2: Stream.STDERR}
_ANSWER_TIMEOUT: Final = 60.0
_BUFFER: Final = 64 * 1024


class StreamRefusedError(Exception):
    """The engine answered with an error instead of a stream."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class UpgradedStream:
    """Both directions of an upgraded connection.  One thread reads; another may write, half-close or close."""

    def __init__(self, base_url: str, path: str, body: Mapping[str, Any]) -> None:
        """Post ``body`` to ``path`` and take the connection over.

        Raises:
            StreamRefusedError: the engine answered with an error.
            RuntimeFailure: the engine cannot be reached, or its answer is no HTTP.
        """
        self._socket = _connect(base_url)
        self._reader = self._socket.makefile("rb", _BUFFER)
        self._stream: Stream | None = None
        self._left = 0
        try:
            self._socket.sendall(_request(path, body))
            _await_upgrade(self._reader)
            self._socket.settimeout(None)
        except OSError as error:
            self.close()
            raise RuntimeFailure(ErrorCode.BUSY, f"the Docker engine at {base_url} did not answer: {error}") from error
        except BaseException:
            self.close()
            raise

    def read(self) -> tuple[Stream, bytes] | None:
        """Return the next bytes of one stream, at most `EXEC_CHUNK`; ``None`` when the engine ended the connection."""
        try:
            while self._left == 0:
                header = self._reader.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    return None
                number, self._left = _HEADER.unpack(header)
                self._stream = _STREAMS.get(number)
            data = self._reader.read(min(self._left, EXEC_CHUNK))
        except (OSError, ValueError):  # reset by the engine, or closed on this side
            return None
        if not data or self._stream is None:
            return None
        self._left -= len(data)
        return self._stream, data

    def write(self, data: bytes) -> bool:
        """Send input, blocking while nobody takes it; return ``False`` when the connection has ended."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def close_write(self) -> None:
        """End the input and leave the output open.  Idempotent."""
        self._shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End both directions; what has arrived can still be read, blocked calls return.  Idempotent."""
        self._shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End both directions and free the descriptor.  Idempotent."""
        self.hang_up()
        self._reader.close()
        self._socket.close()

    def _shutdown(self, how: int) -> None:
        try:
            self._socket.shutdown(how)
        except OSError:
            return  # the other side was faster, or it was done before


def _connect(base_url: str) -> socket.socket:
    scheme, _, path = base_url.partition("://")
    if scheme != "unix":
        raise RuntimeFailure(ErrorCode.UNSUPPORTED, f"the Docker engine must be at a unix:// socket, not {base_url}")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_ANSWER_TIMEOUT)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise RuntimeFailure(ErrorCode.BUSY, f"the Docker engine at {base_url} did not answer: {error}") from error
    return connection


def _request(path: str, body: Mapping[str, Any]) -> bytes:
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
        f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def _await_upgrade(reader: Any) -> None:
    words = reader.readline(_BUFFER).split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError("it closed the connection instead of answering")
    headers = http.client.parse_headers(reader)
    status = int(words[1])
    if status not in (http.client.SWITCHING_PROTOCOLS, http.client.OK):
        text = reader.read(min(int(headers.get("Content-Length") or 0), _BUFFER))
        raise StreamRefusedError(status, _message(text))


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or "no reason given"
