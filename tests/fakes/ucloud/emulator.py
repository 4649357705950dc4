"""The emulator as a whole: the API on one port, the control of time, faults and truth on another."""

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.fakes.booting import Booter, Effects
from tests.fakes.emulation import Clock, Ticker, control_answers
from tests.fakes.ucloud.auth import Auth, Caller
from tests.fakes.ucloud.catalogue import Catalogue
from tests.fakes.ucloud.cluster import Cluster
from tests.fakes.ucloud.control import ControlPort
from tests.fakes.ucloud.core import Core, page_size
from tests.fakes.ucloud.faults import ApiError, Faults
from tests.fakes.web import Reply, Request, WebServer

MAINTENANCE_PAGE = b"<html><body><h1>503</h1><p>We will be back soon.</p></body></html>"
NOT_FOUND = Reply(404, b"404 page not found\n", "text/plain; charset=utf-8")
EPOCH = 1_787_300_000.0
"""Where virtual time begins."""

Handler = Callable[[Caller, Request], Any]


class World:
    """Everything behind the two ports.  One lock guards it all."""

    def __init__(self, seed: int, booter: Booter | None, pace: float) -> None:
        self.lock = threading.RLock()
        self.chance = random.Random(seed)
        self.clock = Clock(EPOCH, pace)
        self.faults = Faults(random.Random(seed + 1))
        self.catalogue = Catalogue()
        self.auth = Auth(self.clock, self.chance)
        self.effects = Effects()
        self.cluster = Cluster(
            self.clock,
            self.chance,
            self.catalogue,
            self.faults,
            lambda: self.core,
            booter=booter,
            effects=self.effects,
        )
        self.core = Core(self.clock, self.chance, self.catalogue, self.faults, self.cluster)
        self.calls: list[str] = []


class Api:
    """The public surface."""

    def __init__(self, world: World) -> None:
        self.world = world
        core, auth, catalogue = world.core, world.auth, world.catalogue
        self.routes: dict[tuple[str, str], tuple[str, Handler]] = {
            ("POST", "/api/jobs"): ("submit", lambda c, r: core.submit(c, r.json()["items"])),
            ("GET", "/api/jobs/browse"): ("browse", lambda c, r: core.browse(c, r.query)),
            ("GET", "/api/jobs/retrieve"): ("retrieve", lambda c, r: core.retrieve(c, r.query)),
            ("POST", "/api/jobs/search"): ("search", self._search),
            ("POST", "/api/jobs/terminate"): ("terminate", lambda c, r: core.terminate(c, r.json()["items"])),
            ("POST", "/api/jobs/suspend"): ("suspend", lambda c, r: core.suspend(c, r.json()["items"])),
            ("POST", "/api/jobs/unsuspend"): ("unsuspend", lambda c, r: core.unsuspend(c, r.json()["items"])),
            ("POST", "/api/jobs/extend"): ("extend", self._extend),
            ("POST", "/api/jobs/updateLabels"): ("labels", lambda c, r: core.update_labels(c, r.json()["items"])),
            ("POST", "/api/jobs/rename"): ("rename", lambda c, r: core.rename(r.json()["items"])),
            ("GET", "/api/jobs/retrieveProducts"): ("products", self._products),
            ("GET", "/api/products/v2/browse"): ("browse_products", self._browse_products),
            ("GET", "/api/accounting/v2/browseWallets"): ("wallets", lambda c, r: catalogue.wallets_json()),
            ("POST", "/api/tokens"): ("tokens", lambda c, r: auth.make_api_token(c, r.json())),
            ("POST", "/api/tokens/revoke"): ("revoke", lambda c, r: auth.revoke(str(r.json().get("id")))),
        }

    def answer(self, request: Request) -> Reply:
        """Answer one call: faults of the way there, the call itself, faults of the way back."""
        name, handler = self.routes.get((request.method, request.path), ("", None))
        if request.path == "/auth/refresh":
            name = "refresh"
        if not name:
            return NOT_FOUND
        if (latency := self._fault("latency", name)) is not None:
            time.sleep(float(latency.get("seconds", 1.0)))
        with self.world.lock:
            self.world.calls.append(name)
            reply = self._before(name)
            if reply is not None:
                return reply
            if (late := self.world.faults.strike("late_effect", name)) is not None:
                # The client loses its connection while the call is still on its way through.
                self.world.clock.after(float(late.get("seconds", 50.0)), lambda: self._called(name, handler, request))
                return Reply(cut=0)
            return self._after(name, self._called(name, handler, request))

    def _called(self, name: str, handler: Handler | None, request: Request) -> Reply:
        world, at = self.world, self.world.clock.now + self.world.core.skew
        bearer = _bearer(request)
        try:
            if handler is None:
                body = world.auth.renew(bearer)
            else:
                if world.faults.strike("expired", name) is not None:
                    world.auth.expire_access()
                caller = world.auth.caller(bearer, request.headers.get("project"))
                body = handler(caller, request)
        except ApiError as error:
            return Reply(error.status, json.dumps(error.body()).encode(), at=at)
        except (ValueError, KeyError, TypeError, AttributeError):
            return Reply(400, json.dumps(ApiError(400, "Invalid request supplied").body()).encode(), at=at)
        return Reply(200, json.dumps(body if body is not None else {}).encode(), at=at)

    def _before(self, name: str) -> Reply | None:
        faults = self.world.faults
        if faults.strike("lost_request", name) is not None:
            return Reply(cut=0)
        if (fault := faults.strike("gateway", name)) is not None:
            page = b"" if fault.get("body") == "empty" else MAINTENANCE_PAGE
            return Reply(int(fault.get("status", 503)), page, "text/html")
        if (fault := faults.strike("rate_limit", name)) is not None:
            after = fault.get("retry_after")
            headers = {} if after is None else {"Retry-After": str(after)}
            return Reply(429, json.dumps(ApiError(429, "Too many requests").body()).encode(), headers=headers)
        if (fault := faults.strike("error", name)) is not None:
            error = ApiError(int(fault["status"]), fault.get("why", ""), fault.get("code", ""))
            return Reply(error.status, json.dumps(error.body()).encode())
        return None

    def _after(self, name: str, reply: Reply) -> Reply:
        faults = self.world.faults
        if (fault := faults.strike("lost_response", name)) is not None:
            mode = fault.get("mode", "close")
            if mode == "html":
                return Reply(504, MAINTENANCE_PAGE, "text/html")
            if mode == "half":
                return Reply(reply.status, reply.body + b" " * 64, cut=150)
            return Reply(cut=0)
        if faults.strike("garbage", name) is not None:
            return Reply(200, b"<!doctype html><title>Sign in</title>", "text/html")
        return reply

    def _fault(self, kind: str, name: str) -> dict[str, Any] | None:
        with self.world.lock:
            return self.world.faults.strike(kind, name)

    def _search(self, caller: Caller, request: Request) -> Any:
        body = request.json()
        flags = {key: str(value) for key, value in body.get("flags", {}).items()}
        return self.world.core.search(caller, str(body.get("query", "")), flags)

    def _extend(self, caller: Caller, request: Request) -> Any:
        raise ApiError(400, "Time extension is not supported by this provider")

    def _products(self, caller: Caller, request: Request) -> Any:
        sold: dict[str, list[Any]] = {}
        for product in self.world.catalogue.products:
            status = self.world.cluster.queue_status(product)
            sold.setdefault(product.provider, []).append(product.support(status))
        return {"productsByProvider": sold}

    def _browse_products(self, caller: Caller, request: Request) -> Any:
        """Return a page of products; a last page that is full still has a cursor, to an empty one."""
        items = [product.json() for product in self.world.catalogue.products]
        size, start = page_size(request.query), int(request.query.get("next") or 0)
        shown = items[start : start + size]
        return {"items": shown, "itemsPerPage": size, "next": str(start + size) if len(shown) == size else None}


class Emulator:
    """Both ports, for as long as it is not closed.

    Args:
        seed: of every random choice.
        booter: what runs inside the machines; nothing by default.
        pace: emulated seconds per real one; 0 where only the control port moves time.
        port, control_port: 0 for any free one.
    """

    def __init__(
        self, *, seed: int = 1, booter: Booter | None = None, pace: float = 0.0, port: int = 0, control_port: int = 0
    ) -> None:
        self._world = World(seed, booter, pace)
        self._api = WebServer(Api(self._world).answer, port)
        verbs = ControlPort(self._world).verbs()
        self._control = WebServer(control_answers(verbs, self._world.lock), control_port)
        self._ticker = Ticker(self._world.clock, self._world.lock)

    @property
    def url(self) -> str:
        """Of the API."""
        return self._api.url

    @property
    def control_url(self) -> str:
        return self._control.url

    def close(self) -> None:
        self._ticker.close()
        with self._world.lock:
            self._world.cluster.stop_all()
        self._world.effects.close()
        self._api.close()
        self._control.close()
        if self._world.effects.failures:
            raise AssertionError(f"machines failed: {self._world.effects.failures}")


@contextlib.contextmanager
def emulated(**options: Any) -> Iterator[Emulator]:
    """Yield an emulator for the length of the ``with`` block."""
    emulator = Emulator(**options)
    try:
        yield emulator
    finally:
        emulator.close()


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme == "Bearer" and token else None
