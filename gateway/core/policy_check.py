"""What a policy refuses: pure checks of what a client asks for.

Privileges come in by more doors than one, and each is looked at: an isolation that shares the host's kernel; added
capabilities, and those that ``cap_drop`` leaves; the user, which is root where it is 0, where it is a name (only the
image knows whose), and where it is left to the image; programs with the setuid bit; and the user of a later exec.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.core.policy import Policy
from gateway.wire.capacity import PrepareRequest
from gateway.wire.references import (
    DEFAULT_REGISTRY,
    ImageId,
    host_of,
    is_private_host,
    matches,
    parse_image,
    registry_allowed,
    whole_pattern,
)
from gateway.wire.resources import ALL_GPUS
from gateway.wire.sandboxes import Isolation, SandboxSpec

ALWAYS: Final = "every policy"
MAX_UID: Final = 2**31 - 1  # what Docker takes for a number; it looks anything else up by name
ANY: Final = "*"


@dataclass(frozen=True)
class Violation:
    """One thing that a policy refuses.

    Attributes:
        field: dotted path in the request.
        value: what was asked for, for people.
        allowed: what may be asked for instead.
        where: where that is set.
    """

    field: str
    value: str
    allowed: str
    where: str

    @property
    def problem(self) -> str:
        """What is wrong with the field, in one phrase."""
        return f"{self.value} is not allowed; allowed: {self.allowed} (by {self.where})"


def check(spec: SandboxSpec, policy: Policy) -> list[Violation]:
    """Return what ``policy`` refuses of a client's sandbox; nothing if it may run."""
    return [
        *_image(spec.image, policy),
        *_size(spec, policy),
        *_one_of("network", spec.network, policy.networks, policy.where("networks")),
        *_lifetime(spec, policy),
        *_engine(spec, policy),
        *_root(spec, policy),
        *_capabilities(spec, policy),
        *host_level(spec),
    ]


def doubts(policy: Policy) -> list[str]:
    """Return a sentence for each pattern of images or registries that no whole name matches as it is meant."""
    images = [
        f"{policy.where('images')}: {pattern!r} is not how whole names are written and allows nothing; {meant!r} would"
        for pattern in policy.images
        if (meant := whole_pattern(pattern)) != pattern
    ]
    registries = [
        f"{policy.where('registries')}: {pattern!r} allows nothing; images of it are named by {DEFAULT_REGISTRY!r}"
        for pattern in policy.registries
        if pattern == f"index.{DEFAULT_REGISTRY}"
    ]
    return images + registries


def check_prepare(request: PrepareRequest, policy: Policy) -> list[Violation]:
    """Return what ``policy`` refuses of capacity that a client asks for ahead: no create could use it."""
    image = [] if request.image is None else _image(request.image, policy)
    return [*image, *_size(request, policy), *_engine(request, policy)]


def check_exec(user: str | None, isolation: Isolation, policy: Policy) -> list[Violation]:
    """Return what ``policy`` refuses of the user of an exec; ``None`` takes the sandbox's own, which was checked."""
    if user is None or isolation in policy.root or not may_be_root(user):
        return []
    return [_as_root("user", repr(user), isolation, policy)]


def host_level(spec: SandboxSpec) -> list[Violation]:
    """Return what nobody may have, operators neither: capabilities that reach the host."""
    names = spec.host_level_capabilities
    if not names:
        return []
    allowed = "with isolation runc a capability that does not reach the host"
    return [Violation("security.cap_add", ", ".join(names), allowed, ALWAYS)]


def may_be_root(user: str | None) -> bool:
    """Return whether ``uid[:gid]`` or a name may turn out to be root; ``None`` takes the image's own user."""
    name = (user or "").partition(":")[0]
    return not (name.isascii() and name.isdigit() and 0 < int(name) <= MAX_UID)


# -- one rule each ----------------------------------------------------------------------------------------------------


def _one_of(field: str, value: str | None, allowed: Iterable[str], where: str) -> Iterator[Violation]:
    names = tuple(allowed)
    if value is not None and value not in names:
        yield Violation(field, repr(value), " or ".join(map(repr, names)) or "nothing", where)


def _at_most(field: str, value: float, most: float | None, where: str) -> Iterator[Violation]:
    if most is not None and value > most:
        yield Violation(field, f"{value:.12g}", f"at most {most:.12g}", where)


def _engine(asked: SandboxSpec | PrepareRequest, policy: Policy) -> Iterator[Violation]:
    yield from _one_of("runtime", asked.chosen_runtime, policy.runtimes, policy.where("runtimes"))
    yield from _one_of("isolation", asked.isolation, policy.isolations, policy.where("isolations"))


def _size(asked: SandboxSpec | PrepareRequest, policy: Policy) -> Iterator[Violation]:
    shape = asked.shape
    yield from _at_most("cpus", shape.cpus, policy.max_cpus, policy.where("max_cpus"))
    yield from _at_most("memory_mb", shape.memory_mb, policy.max_memory_mb, policy.where("max_memory_mb"))
    yield from _at_most("disk_mb", shape.disk_mb, policy.max_disk_mb, policy.where("max_disk_mb"))
    if asked.gpus == ALL_GPUS and policy.gpus is not None:
        yield Violation("gpus", "'all'", f"at most {policy.gpus}", policy.where("gpus"))
    else:
        yield from _at_most("gpus", shape.gpus, policy.gpus, policy.where("gpus"))


def _lifetime(spec: SandboxSpec, policy: Policy) -> Iterator[Violation]:
    # Without a ttl of its own it gets the policy's from whoever starts it (`Policy.ttl_without_one`).
    if spec.ttl_seconds is not None:
        yield from _at_most("ttl_seconds", spec.ttl_seconds, policy.max_ttl_seconds, policy.where("max_ttl_seconds"))
    longest, where = policy.max_idle_seconds, policy.where("max_idle_seconds")
    if spec.idle_seconds is not None:
        yield from _at_most("idle_seconds", spec.idle_seconds, longest, where)
    elif longest is not None:
        yield Violation("idle_seconds", "none", f"at most {longest}", where)


def _image(image: str, policy: Policy) -> Iterator[Violation]:
    reference = parse_image(image)
    if isinstance(reference, ImageId):
        # It may have come from any registry, under any name: neither kind of pattern can speak of it.
        free = ANY in policy.images and ANY in policy.registries
        if not free and str(reference) not in policy.images:
            allowed = f"{_listed(policy.images)}, and an id only if it is listed itself"
            yield Violation("image", str(reference), allowed, policy.where("images"))
        return
    if not any(matches(pattern, str(reference)) for pattern in policy.images):
        yield Violation("image", str(reference), _listed(policy.images), policy.where("images"))
    if not registry_allowed(reference.registry, policy.registries):
        private = is_private_host(host_of(reference.registry))
        value = f"registry {reference.registry}{' (private: must be named in full)' if private else ''}"
        yield Violation("image", value, _listed(policy.registries), policy.where("registries"))


def _listed(patterns: tuple[str, ...], shown: int = 5) -> str:
    more = f" or {len(patterns) - shown} more" if len(patterns) > shown else ""
    return (" or ".join(patterns[:shown]) or "nothing") + more


def _root(spec: SandboxSpec, policy: Policy) -> Iterator[Violation]:
    if spec.isolation in policy.root:
        return
    security = spec.security
    if may_be_root(security.user):
        user = "the image's own user, perhaps root," if security.user is None else repr(security.user)
        yield _as_root("security.user", user, spec.isolation, policy)
    if not security.no_new_privileges:
        allowed = f"true with isolation {spec.isolation}, as setuid programs become root"
        yield Violation("security.no_new_privileges", "false", allowed, policy.where("root"))


def _as_root(field: str, user: str, isolation: Isolation, policy: Policy) -> Violation:
    return Violation(field, user, f"a uid other than 0 with isolation {isolation}", policy.where("root"))


def _capabilities(spec: SandboxSpec, policy: Policy) -> Iterator[Violation]:
    if "ALL" in policy.capabilities:
        return
    allowed = " or ".join(policy.capabilities) or "none"
    added = {name.removeprefix("CAP_") for name in spec.security.cap_add}
    refused = spec.capabilities - set(policy.capabilities)
    if refused & added:
        value = ", ".join(sorted(refused & added))
        yield Violation("security.cap_add", value, allowed, policy.where("capabilities"))
    if refused - added:
        value = f"keeping {', '.join(sorted(refused - added))}"
        yield Violation(
            "security.cap_drop",
            value,
            "['ALL']" if not policy.capabilities else f"to keep {allowed}",
            policy.where("capabilities"),
        )
