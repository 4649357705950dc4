"""The control port: time, faults, foreign hands, and the truth.  Only tests know it."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.fakes.ucloud.catalogue import Product
from tests.fakes.ucloud.faults import Fault
from tests.fakes.web import Reply, Request

if TYPE_CHECKING:
    from tests.fakes.ucloud.emulator import World


class Control:
    """Each path is one method; what it returns is the answer."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.routes: dict[str, Callable[[dict[str, Any]], Any]] = {
            "advance": self.advance,
            "fault": self.fault,
            "heal": self.heal,
            "capacity": lambda body: self.world.cluster.capacity.update(body),
            "wallet": self.wallet,
            "product": self.product,
            "job": self.job,
            "credentials": self.credentials,
            "clock_skew": self.clock_skew,
            "history": lambda body: self.world.core.add_history(body["count"], body.get("labels")),
            "files": lambda body: self.world.cluster.files.update(body),
            "script_label": self.script_label,
            "restart_provider": lambda body: self.world.cluster.restart(),
            "audit": lambda body: self.world.core.audit,
            "truth": self.truth,
        }

    def answer(self, request: Request) -> Reply:
        route = self.routes.get(request.path.removeprefix("/_ctl/"))
        if route is None:
            return Reply(404, b"no such control\n", "text/plain")
        with self.world.lock:
            return Reply.of(route(request.json()))

    def advance(self, body: dict[str, Any]) -> Any:
        self.world.clock.advance(float(body["seconds"]))
        return {"now": self.world.clock.now}

    def fault(self, body: dict[str, Any]) -> None:
        self.world.faults.faults.append(Fault(**body))

    def heal(self, body: dict[str, Any]) -> None:
        self.world.faults.faults.clear()

    def wallet(self, body: dict[str, Any]) -> None:
        wallet = self.world.catalogue.wallet(body.pop("category"))
        for name, value in body.items():
            setattr(wallet, name, value)

    def product(self, body: dict[str, Any]) -> None:
        """Changes the product of that name, adds it, or with ``gone`` takes it off the shelf."""
        products = self.world.catalogue.products
        known = next((product for product in products if product.name == body["name"]), None)
        if body.pop("gone", False):
            products[:] = [product for product in products if product is not known]
        elif known is None:
            products.append(Product(**body))
        else:
            products[products.index(known)] = dataclasses.replace(known, **body)

    def job(self, body: dict[str, Any]) -> Any:
        """A person's hand, or an accident, on one job."""
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

    def credentials(self, body: dict[str, Any]) -> None:
        auth, what = self.world.auth, body["do"]
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

    def clock_skew(self, body: dict[str, Any]) -> None:
        self.world.core.skew = float(body["seconds"])

    def script_label(self, body: dict[str, Any]) -> None:
        self.world.cluster.script_label = body["name"]

    def truth(self, body: dict[str, Any]) -> dict[str, Any]:
        """What really is, whatever the API shows."""
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
