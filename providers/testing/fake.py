"""The port over a cloud in memory.

`FakeCloud` is the test's handle: time, faults, and what really is there.  `FakeProvider` is what the code under test
gets.  Several providers may share one cloud, as several deployments share one account.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Final, Self

from providers.base import (
    DEPLOYMENT_LABEL,
    Access,
    Applied,
    Caps,
    ComputeProvider,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    Inventory,
    Offer,
    Phase,
    ProviderError,
    Ref,
    Scope,
    SettingsError,
)
from providers.testing.cloud import CAPS
from providers.testing.cloud import EPOCH as EPOCH
from providers.testing.cloud import MAX_USER_DATA as MAX_USER_DATA
from providers.testing.cloud import FakeCloud as FakeCloud
from providers.testing.cloud import Machine as Machine
from providers.testing.cloud import SimulatedCrash as SimulatedCrash

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class FakeProvider(ComputeProvider):
    """The port, over a `FakeCloud`."""

    kind: ClassVar[str] = "fake"
    caps: ClassVar[Caps] = CAPS

    def __init__(self, cloud: FakeCloud, deployment: str) -> None:
        self.cloud = cloud
        self.deployment = deployment
        if cloud.caps is not CAPS:
            self.caps = cloud.caps  # type: ignore[misc]  # each cloud is of its own kind

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        """A provider over a cloud of its own."""
        if settings:
            raise SettingsError(f"fake: unknown key {min(settings)!r}; it has none")
        return cls(FakeCloud(), deployment)

    def offers(self) -> list[Offer]:
        fault = self.cloud.begin("offers")
        self.cloud.end("offers", fault)
        return [*self.cloud.offers]

    def list(self) -> Inventory:
        fault = self.cloud.begin("list")
        mine = [self._view(machine) for machine in self.cloud.shown() if self._is_mine(machine)]
        leftovers = tuple(each for each, owner in self.cloud.leftovers.items() if owner == self.deployment)
        taken_at = self.cloud.stamp()
        self.cloud.end("list", fault)
        return Inventory(tuple(mine), taken_at, leftovers)

    def get(self, ref: Ref) -> Instance | None:
        fault = self.cloud.begin("get")
        found = [self._view(machine) for machine in self._find(ref)]
        self.cloud.end("get", fault)
        return found[0] if found else None

    def create(self, want: Create) -> Instance:
        fault = self.cloud.begin("create", want)
        instance = self._create(want)
        self.cloud.end("create", fault)
        return instance

    def delete(self, ref: Ref) -> Deleted:
        fault = self.cloud.begin("delete")
        alive = [machine for machine in self._find(ref) if self.cloud.phase(machine) is not Phase.GONE]
        for machine in alive:
            machine.gone_at = machine.gone_at or self.cloud.now + timedelta(seconds=self.cloud.stop_seconds)
        if ref.id is not None and self.cloud.leftovers.get(ref.id) == self.deployment:
            del self.cloud.leftovers[ref.id]
        self.cloud.end("delete", fault)
        return Deleted.ACCEPTED if alive else Deleted.GONE

    def connect(self, instance: Instance) -> Access | None:
        return Access(host=instance.address, port=22, user="root") if instance.address else None

    def _create(self, want: Create) -> Instance:
        if not NAME.fullmatch(want.name):
            raise self._refusal(ErrorKind.CONFIG, f"{want.name!r} is no name", Scope.POOL)
        if len(want.user_data.encode()) > MAX_USER_DATA:
            raise self._refusal(ErrorKind.CONFIG, f"user data is over {MAX_USER_DATA} bytes", Scope.POOL)
        there = self.cloud.machines.get(want.name) if self.caps.unique_names else self.cloud.of_order(want)
        if there is not None:
            if there.operation != want.operation_id or not self._is_mine(there):
                raise self._refusal(ErrorKind.EXISTS, f"the name {want.name} is taken", Scope.INSTANCE)
            return dataclasses.replace(self._view(there), adopted=True)
        if not any((offer.type, offer.location) == (want.type, want.location) for offer in self.cloud.offers):
            raise self._refusal(ErrorKind.CONFIG, f"no offer {want.type} at {want.location}", Scope.POOL)
        return self.cloud.make(want).instance

    def _refusal(self, kind: ErrorKind, message: str, scope: Scope) -> ProviderError:
        return ProviderError(f"fake: {message}", kind=kind, applied=Applied.NO, scope=scope)

    def _view(self, machine: Machine) -> Instance:
        return dataclasses.replace(machine.instance, phase=self.cloud.phase(machine))

    def _is_mine(self, machine: Machine) -> bool:
        return machine.instance.labels.get(DEPLOYMENT_LABEL) == self.deployment

    def _find(self, ref: Ref) -> Sequence[Machine]:
        """All that are meant, those that are there first and the oldest of them first."""
        # Where names are labels, a look by name is a search in what listings are made from.
        is_search = ref.id is None and not self.caps.unique_names
        there = self.cloud.indexed() if is_search else tuple(self.cloud.machines.values())
        return [
            machine
            for machine in (*there, *self.cloud.ended.values())
            if self._is_mine(machine)
            and ref.id in (None, machine.instance.id)
            and ref.name in (None, machine.instance.name)
        ]
