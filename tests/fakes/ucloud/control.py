"""The control port: time, faults, foreign hands, and the truth; and a test's handle on it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.emulation import ControlClient
from tests.fakes.ucloud.catalogue import Product
from tests.fakes.ucloud.faults import Fault

if TYPE_CHECKING:
    from tests.fakes.ucloud.emulator import World


class ControlPort:
    """Each method is one verb."""

    def __init__(self, world: "World") -> None:
        self.world = world

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        world = self.world
        return {
            "advance": self.advance,
            "fault": lambda **fields: world.faults.add(Fault(**fields)),
            "heal": world.faults.clear,
            "capacity": lambda **free: world.cluster.capacity.update(free),
            "wallet": self.wallet,
            "product": self.product,
            "job": self.job,
            "credentials": self.credentials,
            "clock_skew": self.clock_skew,
            "history": world.core.add_history,
            "files": lambda **files: world.cluster.files.update(files),
            "script_label": self.script_label,
            "restart_provider": world.cluster.restart,
            "audit": lambda: world.core.audit,
            "truth": self.truth,
        }

    def advance(self, seconds: float) -> Any:
        self.world.clock.advance(seconds)
        return {"now": self.world.clock.now}

    def wallet(self, category: str, **changes: Any) -> None:
        wallet = self.world.catalogue.wallet(category)
        for name, value in changes.items():
            setattr(wallet, name, value)

    def product(self, **body: Any) -> None:
        """Change the product of that name, add it, or with ``gone`` withdraw it."""
        products = self.world.catalogue.products
        known = next((product for product in products if product.name == body["name"]), None)
        if body.pop("gone", False):
            products[:] = [product for product in products if product is not known]
        elif known is None:
            products.append(Product(**body))
        else:
            products[products.index(known)] = dataclasses.replace(known, **body)

    def job(self, **body: Any) -> Any:
        """Play a person's hand, or an accident, on one job."""
        core, cluster, what, job_id = self.world.core, self.world.cluster, body["do"], str(body.get("id", ""))
        if what == "foreign":
            return {"id": core.add_foreign(body.get("labels", {}))}
        if what == "rename":
            core.jobs[job_id].specification["name"] = body["name"]
        elif what == "relabel":
            core.jobs[job_id].specification["labels"] = dict(body["labels"])
        elif what == "state":
            core.jobs[job_id].note(self.world.clock.now, body["state"], body.get("text"))
        else:
            deeds: dict[str, Callable[[str], None]] = {
                "terminate": cluster.terminate,
                "suspend": cluster.suspend,
                "unsuspend": cluster.unsuspend,
                "vanish": cluster.vanish,
                "power_off": cluster.power_off,
            }
            deeds[what](job_id)
        return {}

    def credentials(self, do: str) -> None:
        auth, what = self.world.auth, do
        if what == "expire":
            auth.expire_access()
        elif what == "kill_refresh":
            auth.kill_refresh()
        elif what == "remove_member":
            auth.members.clear()
        elif what == "revoke":
            auth.revoke("1")
        elif what == "restore":
            auth.restore("1")

    def clock_skew(self, seconds: float) -> None:
        self.world.core.skew = seconds

    def script_label(self, name: str) -> None:
        self.world.cluster.script_label = name

    def truth(self) -> dict[str, Any]:
        """Return what really is, whatever the API shows."""
        core, cluster = self.world.core, self.world.cluster
        return {
            "now": self.world.clock.now,
            "started": cluster.started,
            "orphans": dict(cluster.orphans),
            "billed_seconds": cluster.billed,
            "jobs": {job.id: {"state": job.state, "labels": job.labels} for job in core.jobs.values()},
            "machines": {vm.job_id: {"phase": vm.phase, "script": vm.script} for vm in cluster.vms.values()},
            "calls": self.world.calls,
            "refreshes": self.world.auth.refreshes,
        }


class Remote(ControlClient):
    """The handle: it moves time, breaks things, and asks for the truth."""

    def fault(
        self,
        name: str,
        call: str = "*",
        *,
        times: int | None = 1,
        skip: int = 0,
        probability: float = 1.0,
        **args: Any,
    ) -> None:
        """Add a fault to the script."""
        self.ask("fault", name=name, call=call, times=times, skip=skip, probability=probability, args=args)

    def truth(self) -> Any:
        return self.ask("truth")

    def audit(self) -> Any:
        return self.ask("audit")

    def calls(self, name: str) -> int:
        """Return how often a call was made."""
        count: int = self.truth()["calls"].count(name)
        return count

    def state(self, job_id: str) -> str:
        state: str = self.truth()["jobs"][job_id]["state"]
        return state
