"""Images of the local Docker engine: from a reference to an id, with a pull where one is needed."""

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound

from gateway.wire.closed_ranges import DEFAULT_POLICY, AddressPolicy, IpAddress
from gateway.wire.errors import ErrorCode
from gateway.wire.limits import MIB
from gateway.wire.references import DEFAULT_REGISTRY, ImageId, ImageReference, host_of, parse_image
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.engine_errors import EngineFault, explanation, fault_in, refusal
from node_agent.host.firewall import PullFirewall
from node_agent.host.image_budget import ImageBudget, Kind
from node_agent.host.process import CommandError

log = logging.getLogger(__name__)

PULL_TIMEOUT: Final = 1800.0  # seconds for one image; the engine itself has no bound
LOAD_IT: Final = "load it into the node's Docker engine, see docs/operations.md"
OWNER: Final = "sandbox-fleet.export"  # label on the container behind an export
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i386": "386", "i686": "386"}
"""Docker's names of architectures, by those of the kernel."""
_DEFAULT_HOST: Final = "registry-1.docker.io"
"""Where the engine really asks for images of `DEFAULT_REGISTRY`."""
_ENGINE_ERRORS: Final = (DockerException, requests.RequestException)


def addresses_of(host: str) -> frozenset[IpAddress]:
    """Return all addresses of a host.

    Raises:
        OSError: its name cannot be resolved.
    """
    found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return frozenset(ip_address(address.partition("%")[0]) for address in found)


@dataclass(frozen=True)
class EngineImage:
    """An image that is in the local engine.

    Attributes:
        id: ``sha256:…`` of its configuration: what decides which bytes a sandbox sees.
        digest: the registry's digest where it came from one, else the id.
        env, entrypoint, command, user, working_dir: the image's own configuration.
        size_mb: MiB of all its layers, unpacked.
    """

    id: str
    digest: str
    env: dict[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    working_dir: str
    size_mb: int = 0


class Images:
    """Resolves references against a Docker engine.

    Args:
        client: makes a client; called once per thread, because clients are not safe to share between threads.
        addresses: where registries may be.
        firewall: closes the engine's own connections while it pulls; ``None`` leaves them open.
        resolve: returns all addresses of a host, as `addresses_of` does.
        budget: what images may take of the disk; ``None`` for no bound.
    """

    def __init__(
        self,
        client: Callable[[], docker.APIClient],
        addresses: AddressPolicy = DEFAULT_POLICY,
        firewall: PullFirewall | None = None,
        resolve: Callable[[str], frozenset[IpAddress]] = addresses_of,
        budget: ImageBudget | None = None,
    ) -> None:
        self._budget = budget
        self._make_client = client
        self._addresses = addresses
        self._firewall = firewall
        self._resolve = resolve
        self._local = threading.local()
        # Each lives while somebody pulls or waits: what tenants once asked for must not add up.
        self._pulls: weakref.WeakValueDictionary[ImageReference | ImageId, threading.Lock]
        self._pulls = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def client(self) -> docker.APIClient:
        """The client of this thread.

        Raises:
            DockerException: the engine cannot be reached.
        """
        if not hasattr(self._local, "client"):
            self._local.client = self._make_client()
        client: docker.APIClient = self._local.client
        return client

    def resolve(self, text: str) -> EngineImage:
        """Return the image that ``text`` names, pulled when the engine does not have it.

        Concurrent calls for one image share one pull.

        Raises:
            RuntimeFailure: ``IMAGE_ERROR``, naming the image and the cause; also for an image of another platform,
                and for one that is not here and whose registry has a closed address.
        """
        try:
            wanted = parse_image(text)
        except ValueError as error:
            raise _failure(text, str(error)) from error
        image = self._inspect(wanted)
        if image is None:
            with self._pull_lock(wanted):
                image = self._inspect(wanted) or self._pulled(wanted)  # another thread may have pulled it meanwhile
        if self._budget is not None:
            self._budget.touch(Kind.PULLED, image.id)
        return image

    def local(self) -> list[str]:
        """Return the ids and registry digests of all images of the engine, sorted.

        Raises:
            RuntimeFailure: ``BUSY`` when the engine does not answer.
        """
        try:
            listed = self.client.images()
        except _ENGINE_ERRORS as error:
            raise RuntimeFailure(ErrorCode.BUSY, f"the Docker engine did not list its images: {error}") from error
        found = {entry["Id"] for entry in listed}
        for entry in listed:
            found |= {text.partition("@")[2] for text in entry.get("RepoDigests") or [] if "@sha256:" in text}
        return sorted(found)

    def export(self, image: EngineImage, owner: str) -> Iterator[bytes]:
        """Yield the image's file system as a tar stream.

        Args:
            owner: label value on the container that the engine needs for it, so that a sweep finds it after a crash.

        Raises:
            RuntimeFailure: ``IMAGE_ERROR``.
        """
        try:
            container = self.client.create_container(image.id, command=["-"], entrypoint=["-"], labels={OWNER: owner})
            try:
                yield from self.client.export(container["Id"])
            finally:
                self.client.remove_container(container["Id"], force=True, v=True)
        except _ENGINE_ERRORS as error:
            raise _refused(image.id, f"it could not be exported: {explanation(error)}", error) from error

    def release(self) -> list[str]:
        """Remove what pulls have left on this host; return a phrase for each thing.  Idempotent.

        Raises:
            CommandError: the host refused.
        """
        return [] if self._firewall is None else self._firewall.remove()

    def sweep_exports(self, owner: str) -> list[str]:
        """Remove containers that an interrupted `export` left; return a phrase for each."""
        try:
            left = self.client.containers(all=True, filters={"label": f"{OWNER}={owner}"})
            for entry in left:
                self.client.remove_container(entry["Id"], force=True, v=True)
        except _ENGINE_ERRORS as error:
            return [f"containers of interrupted image exports stay: {error}"]
        return [f"container {entry['Id'][:12]} of an interrupted image export" for entry in left]

    def _inspect(self, wanted: ImageReference | ImageId) -> EngineImage | None:
        """Return the image if the engine has one of exactly that name or id; Docker itself takes part of an id too."""
        try:
            answer = self.client.inspect_image(str(wanted))  # type: ignore[no-untyped-call]
        except ImageNotFound:
            return None
        except _ENGINE_ERRORS as error:
            raise _refused(wanted, f"the Docker engine cannot inspect it: {explanation(error)}", error) from error
        if wanted not in _names(answer):
            return None
        _check_platform(wanted, answer)
        return _image(wanted, answer)

    def discard(self, image_id: str) -> bool:
        """Remove an image from the engine unless a container or another name needs it; return whether it is gone."""
        try:
            self.client.remove_image(image_id)
        except ImageNotFound:
            return True
        except _ENGINE_ERRORS as error:
            log.info("image %s stays: %s", image_id, explanation(error))
            return False
        return True

    def _pulled(self, wanted: ImageReference | ImageId) -> EngineImage:
        """Pull an image, and let it count.

        Raises:
            RuntimeFailure: as `resolve`; ``NODE_REFUSED`` while the images in use leave it no room.
        """
        if self._budget is not None:
            self._budget.make_room(str(wanted), 0)
        self._pull(wanted)
        image = self._inspect(wanted)
        if image is None:
            raise _failure(wanted, "the engine pulled it and does not have it; check the engine's platform")
        if self._budget is not None:
            try:
                # What it takes is known only now; its layers were bounded while they came.
                self._budget.make_room(str(wanted), image.size_mb)
                self._budget.add(Kind.PULLED, image.id, image.size_mb)
            except (RuntimeFailure, OSError) as error:
                self.discard(image.id)
                if isinstance(error, RuntimeFailure):
                    raise
                raise _failure(wanted, _not_pulled(str(error))) from error
        return image

    def _pull(self, reference: ImageReference | ImageId) -> None:
        if isinstance(reference, ImageId):
            raise _failure(reference, f"the engine has no image of this id, and none is pulled by its id; {LOAD_IT}")
        self._check_registry(reference)
        self._close_ranges(reference)
        tag = reference.digest or reference.tag
        deadline = time.monotonic() + PULL_TIMEOUT
        layers: dict[str, int] = {}
        try:
            for line in self.client.pull(reference.name, tag=tag, stream=True, decode=True):
                if "error" in line:
                    raise _said(reference, _not_pulled(line["error"]), line["error"])
                if total := (line.get("progressDetail") or {}).get("total"):
                    layers[str(line.get("id"))] = int(total)
                    self._check_layers(reference, sum(layers.values()))
                if time.monotonic() > deadline:
                    raise _failure(reference, f"the pull took longer than {PULL_TIMEOUT:.0f} s")
        except _ENGINE_ERRORS as error:
            raise _refused(reference, _not_pulled(explanation(error)), error) from error

    def _check_layers(self, reference: ImageReference, size: int) -> None:
        """Break a pull off whose layers alone, packed as they are, take more than all images may."""
        limit = None if self._budget is None else self._budget.limit_mb
        if limit is not None and size > limit * MIB:
            raise _failure(reference, f"it takes more than the {limit} MiB that this node keeps for images (images_mb)")

    def _check_registry(self, reference: ImageReference) -> None:
        """Refuse a registry that is where nothing a client asks for may lead, e.g. on this machine or beside it.

        Raises:
            RuntimeFailure: ``IMAGE_ERROR``, naming the registry and its address.
        """
        registry = reference.registry
        try:
            found = self._resolve(_DEFAULT_HOST if registry == DEFAULT_REGISTRY else host_of(registry))
        except OSError:
            return  # the engine may know it, by a mirror or a proxy of its own; else it says so
        if closed := sorted(map(str, filter(self._addresses.is_closed, found))):
            raise _failure(
                reference,
                _not_pulled(
                    f"its registry {registry} is at {closed[0]}, which is closed; open_ranges of the node opens it"
                ),
            )

    def _close_ranges(self, reference: ImageReference) -> None:
        """Close the engine's own connections, which a registry may send anywhere.

        Raises:
            RuntimeFailure: ``NODE_REFUSED``, as another node may be able to; ``BUSY`` while the engine is away.
        """
        try:
            if self._firewall is not None:
                self._firewall.ensure()
        except CommandError as error:
            raise RuntimeFailure(
                ErrorCode.NODE_REFUSED, f"image {reference}: nothing was pulled, as its way cannot be closed: {error}"
            ) from error
        except OSError as error:
            raise _away(reference, error) from error

    def _pull_lock(self, wanted: ImageReference | ImageId) -> threading.Lock:
        with self._lock:
            return self._pulls.setdefault(wanted, threading.Lock())


def _names(answer: dict[str, Any]) -> set[ImageReference | ImageId]:
    """Return everything that an image of the engine may be asked for by."""
    return {ImageId(answer["Id"]), *_references(answer, "RepoTags"), *_references(answer, "RepoDigests")}


def _references(answer: dict[str, Any], key: str) -> list[ImageReference]:
    found = []
    for text in answer.get(key) or []:
        # An untagged image may be listed as <none>:<none>.
        with contextlib.suppress(ValueError):
            found.append(ImageReference.parse(text))
    return found


def _check_platform(reference: ImageReference | ImageId, answer: dict[str, Any]) -> None:
    """Refuse an image that this machine cannot run: its first process, and every exec, would fail for no clear reason.

    Raises:
        RuntimeFailure: ``IMAGE_ERROR`` that names both platforms.
    """
    here = ("linux", architecture(os.uname().machine))
    # An image that does not say what it is for is taken to be for this machine, as Docker does.
    image = (answer.get("Os") or here[0], architecture(answer.get("Architecture") or here[1]))
    if image != here:
        raise _failure(
            reference,
            f"it is for {'/'.join(image)} and this node is {'/'.join(here)};"
            " use an image that is built for the node's platform",
        )


def architecture(name: str) -> str:
    """Return Docker's name of an architecture, e.g. ``amd64`` for ``x86_64``."""
    return _ARCHITECTURES.get(name, name)


def _image(reference: ImageReference | ImageId, answer: dict[str, Any]) -> EngineImage:
    config = answer.get("Config") or {}
    return EngineImage(
        id=answer["Id"],
        digest=_digest(reference, answer),
        env=dict(entry.partition("=")[::2] for entry in config.get("Env") or []),
        entrypoint=_words(config.get("Entrypoint")),
        command=_words(config.get("Cmd")),
        user=config.get("User") or "",
        working_dir=config.get("WorkingDir") or "",
        size_mb=-(-int(answer.get("Size") or 0) // MIB),
    )


def _words(value: list[str] | str | None) -> tuple[str, ...]:
    """Return the words of a command; old images hold a string where a list is meant, for a shell to read."""
    if isinstance(value, str):
        return ("/bin/sh", "-c", value) if value else ()
    return tuple(value or ())


def _digest(reference: ImageReference | ImageId, answer: dict[str, Any]) -> str:
    """Return the registry's digest under the name that was asked for, if there is one; else any; else the id."""
    image_id: str = answer["Id"]
    name = None if isinstance(reference, ImageId) else reference.name
    known = sorted(_references(answer, "RepoDigests"), key=lambda found: found.name != name)
    return next((found.digest for found in known if found.digest), image_id)


def _not_pulled(cause: str) -> str:
    return f"it is not in the local engine and the pull failed: {cause.rstrip('. ')}; {LOAD_IT}"


def _failure(reference: ImageReference | ImageId | str, problem: str) -> RuntimeFailure:
    return RuntimeFailure(ErrorCode.IMAGE_ERROR, f"image {reference}: {problem}", reason=DeathReason.IMAGE_ERROR)


def _refused(reference: ImageReference | ImageId | str, problem: str, error: Exception) -> RuntimeFailure:
    """Translate an error of the engine: an answer is about the image; without one the engine is away for a while.

    An engine that restarts must not fail every sandbox that is created meanwhile: ``BUSY`` is asked again.
    """
    if isinstance(error, APIError):
        return _said(reference, problem, explanation(error))
    return _away(reference, error)


def _said(reference: ImageReference | ImageId | str, problem: str, words: str) -> RuntimeFailure:
    """Return the failure by what the engine said: it may be about the image, about its disk, or about itself."""
    if fault_in(words) is EngineFault.REFUSED:
        return _failure(reference, problem)
    return refusal(f"image {reference}", words, ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR)


def _away(reference: ImageReference | ImageId | str, error: Exception) -> RuntimeFailure:
    return RuntimeFailure(
        ErrorCode.BUSY, f"image {reference}: the Docker engine did not answer ({explanation(error)}); is it running?"
    )
