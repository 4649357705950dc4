"""Names of images in their one whole form, and whether a registry's host can be outside at all.

Docker completes a name (``debian`` is ``docker.io/library/debian:latest``) and, where it finds none of that name, takes
the text for the beginning of an image's id.  Here a name is completed once, by `parse_image`: what it returns is
what a policy is asked about, and what an engine is asked for.  An id has to be whole and to say that it is one.
"""

import contextlib
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints

from gateway.wire.closed_ranges import IpAddress, is_closed

DEFAULT_REGISTRY: Final = "docker.io"
DEFAULT_TAG: Final = "latest"

_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?")
_REPOSITORY: Final = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")  # which Docker takes for an id, and for nothing else
_LONGEST_NAME: Final = 255  # characters of registry and repository, as Docker has it
_FORM: Final = "registry/repository:tag or registry/repository@sha256:…, the repository in lower case"
_PRIVATE_SUFFIXES: Final = (".localhost", ".local", ".internal", ".lan", ".intranet", ".corp", ".home", ".home.arpa")


@dataclass(frozen=True)
class ImageReference:
    """The name of an image with all defaults filled in.

    Attributes:
        registry: ``host`` or ``host:port``, in lower case.
        repository: path within it, such as ``library/debian``.
        tag: ``None`` where only a digest counts.
        digest: ``algorithm:hex``, or ``None``.
    """

    registry: str
    repository: str
    tag: str | None
    digest: str | None = None

    def __str__(self) -> str:
        tag = "" if self.tag is None else f":{self.tag}"
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    @classmethod
    def parse(cls, text: str) -> "ImageReference":
        """Read a reference such as ``debian``, ``ghcr.io/owner/name:tag`` or ``host:5000/name@sha256:…``.

        Raises:
            ValueError: it is none; also an image's id, which is no name.
        """
        rest, at, digest = text.partition("@")
        if _DIGEST.fullmatch(text) or _HEX_DIGEST.fullmatch(text) or (at and not _DIGEST.fullmatch(digest)):
            raise ValueError(f"{text!r} is not the name of an image: {_FORM}")
        first, slash, path = rest.partition("/")
        # As Docker decides: a host has a dot, a port or upper case, or is localhost; all else is a path on the default.
        if slash and (set(first) & {".", ":", "["} or first == "localhost" or first != first.lower()):
            registry, rest = first, path
        else:
            registry = DEFAULT_REGISTRY
        repository, colon, tag = rest.partition(":")
        registry = registry.lower()
        if registry in {DEFAULT_REGISTRY, f"index.{DEFAULT_REGISTRY}"}:
            registry = DEFAULT_REGISTRY
            repository = repository if "/" in repository else f"library/{repository}"
        if (
            not _REGISTRY.fullmatch(registry)
            or not _REPOSITORY.fullmatch(repository)
            or (colon and not _TAG.fullmatch(tag))
            or len(registry) + 1 + len(repository) > _LONGEST_NAME
        ):
            raise ValueError(f"{text!r} is not the name of an image: {_FORM}")
        # A tag beside a digest says nothing more.
        return cls(registry, repository, None if digest else tag or DEFAULT_TAG, digest or None)


@dataclass(frozen=True)
class ImageId:
    """An image by its id, which only an engine that has it already can find: no registry is asked.

    Attributes:
        digest: ``sha256:`` and 64 digits.
    """

    digest: str

    def __str__(self) -> str:
        return self.digest


def parse_image(text: str) -> ImageReference | ImageId:
    """Read the name of an image, or an id, which is ``sha256:`` with all of its 64 digits.

    Raises:
        ValueError: it is neither.
    """
    return ImageId(text) if _DIGEST.fullmatch(text) else ImageReference.parse(text)


def _checked(text: str) -> str:
    parse_image(text)
    return text


ImageName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512),
    AfterValidator(_checked),
    # Wider than the grammar, for people; `parse_image` decides.
    Field(
        json_schema_extra={
            "pattern": r"^([A-Za-z0-9.:\[\]-]+/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
            r"(@sha256:[0-9a-f]{64})?$"
        }
    ),
]
"""What a client names an image by."""


def host_of(registry: str) -> str:
    """Return the host of ``host``, ``host:port`` or ``[address]:port``."""
    if registry.startswith("["):
        return registry[1:].partition("]")[0]
    return registry.partition(":")[0]


def is_private_host(host: str) -> bool:
    """Return whether a host, by its name alone, lies on the machine itself or in a private network.

    A name that looks public may still resolve to a private address; only who resolves it can tell.
    """
    name = host.lower().rstrip(".")
    address = _address(name)
    if address is not None:
        return is_closed(address)
    # A name of one label is completed from the machine's own search list.
    return "." not in name or name.endswith(_PRIVATE_SUFFIXES)


def _address(name: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        try:
            # Resolvers take 127.1, 0x7f.1 and 2130706433 for addresses as well.
            return ipaddress.IPv4Address(socket.inet_aton(name))
        except (OSError, UnicodeError):
            return None


def matches(pattern: str, text: str) -> bool:
    """Return whether ``text`` as a whole matches a pattern, in which only ``*`` is special: any characters, or none."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def whole_pattern(pattern: str) -> str:
    """Return what a pattern of names most likely means, written as whole names are; most often the pattern itself."""
    if "*" not in pattern:
        for text in (pattern, pattern.lower()):
            with contextlib.suppress(ValueError):
                return str(parse_image(text))
        return pattern
    head, slash, rest = pattern.partition("/")
    if not slash:
        name, colon, _ = pattern.partition(":")
        of_a_host = set(name) & {"*", "."} or name == "localhost"  # debian* may be debian.example.com/app:1
        return f"{DEFAULT_REGISTRY}/library/{pattern.lower()}" if colon and not of_a_host else pattern
    if "*" in head:
        return pattern
    if not (set(head) & {".", ":"} or head == "localhost" or head != head.lower()):
        return f"{DEFAULT_REGISTRY}/{pattern}"
    registry = head.lower().removeprefix("index.") if head.lower() == f"index.{DEFAULT_REGISTRY}" else head.lower()
    repository, mark, tag = re.fullmatch(r"([^*:@]*)([*:@]?)(.*)", rest).groups()  # type: ignore[union-attr]
    library = "library/" if registry == DEFAULT_REGISTRY and mark in {":", "@"} and "/" not in repository else ""
    return f"{registry}/{library}{repository.lower()}{mark}{tag}"


def registry_allowed(registry: str, patterns: tuple[str, ...]) -> bool:
    """Return whether patterns of registries admit one.

    A private host is admitted only by a pattern that names it in full: ``*`` means the registries of the internet.
    """
    private = is_private_host(host_of(registry))
    return any(matches(pattern, registry) for pattern in patterns if not (private and "*" in pattern))
