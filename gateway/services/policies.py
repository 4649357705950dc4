"""The policy file: read at the start, and again when it changes, so that a new policy needs no restart."""

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

from gateway import errors
from gateway.core import policy_check
from gateway.core.policy import Policies, Policy, Quota
from gateway.core.policy_check import Violation
from gateway.services.tasks import AsyncClock
from gateway.services.tokens import Principal
from gateway.wire.capacity import PrepareRequest
from gateway.wire.limits import MIB
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, SandboxSpec
from gateway.wire.settings import ConfigurationError
from gateway.wire.system import PolicyAnswer, PolicyValue
from gateway.wire.tokens import TokenScope

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at the file, whether or not anybody calls; a look costs one system call."""
MAX_FILE: Final = 4 * MIB
_SETTLED_NS: Final = 2_000_000_000
"""Age from which the time of a file's last change tells it from the next one: clocks of file systems are coarse."""


def read_policies(path: Path) -> Policies:
    """Return the policies of a file.

    Raises:
        ConfigurationError: it cannot be read or is wrong; the sentence names file, table and key.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[Policies, str]:
    """Return the policies of a file, and a version that changes with its content. Raises as `read_policies`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ConfigurationError(f"policy file {path}: is larger than {MAX_FILE // MIB} MiB")
        return Policies.parse(content.decode(), str(path)), hashlib.sha256(content).hexdigest()[:16]
    except OSError as error:
        raise ConfigurationError(f"policy file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"policy file {path}: is not UTF-8") from error


class PolicyFile:
    """The policies that hold now.  A file that became wrong changes nothing; the log and `problem` say so at once.

    Args:
        path: the file; ``None`` means that the built-in defaults hold for everybody.
        clock: of the gateway.

    Raises:
        ConfigurationError: as `read_policies`.
    """

    def __init__(self, path: Path | None, clock: AsyncClock) -> None:
        self._path = path
        self._clock = clock
        self._seen = None if path is None else _signature(path, clock)
        self._policies = Policies()
        self._version: str | None = None
        if path is not None:
            self._policies, self._version = _read(path)
        self._doubts: set[str] = set()
        self._warn()
        self.problem: str | None = None
        """What is wrong with the file as it is now, while the one before still holds."""

    def current(self) -> Policies:
        """Return the policies of the file as it was at the last look, or when it was last right."""
        return self._policies

    async def run(self) -> None:
        """Look at the file again and again, for ever."""
        while self._path is not None:
            await self._clock.sleep(LOOK_EVERY)
            self.look()

    def look(self) -> None:
        """Read the file again if it has changed."""
        if self._path is not None:
            self._look(self._path)

    def describe(self, tenant: str, used: Shape, prepared_units: int) -> PolicyAnswer:
        """Return what holds for a tenant, for operators.

        Args:
            tenant: whose clients.
            used: what counts against the quota now.
            prepared_units: likewise, the unclaimed ones.
        """
        policy, quota = (
            {key: PolicyValue(value=value, where=where) for key, (value, where) in table.described().items()}
            for table in self._policies.of(tenant)
        )
        return PolicyAnswer(
            tenant=tenant,
            file=self._path and str(self._path),
            version=self._version,
            problem=self.problem,
            policy=policy,
            quota=quota,
            used=used,
            prepared_units=prepared_units,
            tenants=list(self._policies.tenants),
        )

    # -- checks of calls ----------------------------------------------------------------------------------------------

    def admit(self, caller: Principal, spec: SandboxSpec) -> int | None:
        """Check what a caller wants to run, at a create or a restart.

        Returns:
            The ttl in seconds of a sandbox whose spec has none; ``None``: it has none.

        Raises:
            ApiError: ``POLICY_DENIED``.
        """
        policy = self._policy_for(caller)
        found = policy_check.host_level(spec) if policy is None else policy_check.check(spec, policy)
        _refuse(f"sandbox {spec.id}", caller, found)
        return None if policy is None else policy.ttl_without_one

    def admit_prepare(self, caller: Principal, request: PrepareRequest) -> None:
        """Check capacity that a caller asks for ahead. Raises as `admit`."""
        policy = self._policy_for(caller)
        if policy is not None:
            _refuse("prepared capacity", caller, policy_check.check_prepare(request, policy))

    def admit_exec(self, caller: Principal, user: str | None, isolation: Isolation) -> None:
        """Check whom a caller wants to run a process as, in a sandbox of this isolation. Raises as `admit`."""
        policy = self._policy_for(caller)
        if policy is not None:
            _refuse("the exec", caller, policy_check.check_exec(user, isolation, policy))

    def quota_for(self, caller: Principal) -> Quota | None:
        """Return the quota that bounds what a caller makes; ``None`` for an operator."""
        return None if caller.scope is TokenScope.OPERATOR else self.current().of(caller.tenant)[1]

    def _policy_for(self, caller: Principal) -> Policy | None:
        """Return what binds a caller; ``None`` for an operator."""
        return None if caller.scope is TokenScope.OPERATOR else self.current().of(caller.tenant)[0]

    # -- the file -----------------------------------------------------------------------------------------------------

    def _look(self, path: Path) -> None:
        seen = _signature(path, self._clock)
        if seen is not None and seen == self._seen:
            return
        self._seen, before = seen, self._version
        try:
            self._policies, self._version = _read(path)
        except ConfigurationError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                log.error("THE NEW POLICY IS NOT USED, the one before still holds: %s", error)
            return
        if self.problem is not None:
            log.warning("policy file %s: is right again, and holds", path)
            self.problem = None
        elif self._version != before:  # a young file is read again until its time can tell the next change
            log.info("policy file %s: has changed, and holds", path)
        self._warn()

    def _warn(self) -> None:
        """Log what patterns of the file match nothing, once."""
        found = {doubt for policy in self._policies.policies for doubt in policy_check.doubts(policy)}
        for doubt in sorted(found - self._doubts):
            log.warning("%s", doubt)
        self._doubts = found


def _refuse(subject: str, caller: Principal, found: list[Violation]) -> None:
    if found:
        raise errors.policy_denied(subject, caller.tenant, found)


def _signature(path: Path, clock: AsyncClock) -> tuple[int, int, int] | None:
    """Return what changes with the file; ``None`` where the next change might not show, or there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - one call, at every look
    except OSError:
        return None
    if clock.now().timestamp() * 1e9 - found.st_mtime_ns < _SETTLED_NS:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
