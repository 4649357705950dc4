"""A walk over all routes: what one tenant has is, to every other, exactly as if it were not there.

`WALK` has a row for every route.  Three tenants own sandboxes, execs, files and prepared capacity under the same ids
and labels.  Each names what the others have, in every way that a client could come to know, and compares the answer
with that to a name which nobody ever used; at the end everything is as it was.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import permutations
from typing import Any, Final, NoReturn

import pytest
import requests

from gateway.client import GatewayClient
from gateway.http.auth import ACCESS, RouteAccess
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import JoinTokenRequest, RegisterRequest
from gateway.wire.resources import Shape
from gateway.wire.tenants import own_id, qualified
from gateway.wire.tokens import TokenRequest
from node_agent.errors import RuntimeFailure
from tests.fakes.runtime import FakeRuntime
from tests.integration.small_fleet import SMALL, SmallFleet, small_fleet
from tests.waiting import wait_until

TENANTS: Final = ("default", "acme", "beta")
PAIRS: Final = tuple(permutations(TENANTS, 2))
Row = tuple[str, str]


class Way(Enum):
    """How a route is walked."""

    OPEN = "needs no token and knows no tenant"
    CLOSED = "not for clients"
    SANDBOX = "names a sandbox"
    SESSION = "names an exec session"
    UNITS = "names prepared capacity"
    SANDBOXES = "lists sandboxes"
    PREPARED = "lists prepared capacity"
    USAGE = "sums up usage"
    MAKE = "makes a sandbox under an id of the caller's"
    PREPARE = "prepares capacity under an id of the caller's"


WALK: Final[dict[Row, Way]] = {
    ("GET", "/healthz"): Way.OPEN,
    ("GET", "/readyz"): Way.OPEN,
    ("GET", "/openapi.json"): Way.OPEN,
    ("POST", "/v1/sandboxes"): Way.MAKE,
    ("GET", "/v1/sandboxes"): Way.SANDBOXES,
    ("GET", "/v1/sandboxes/{sandbox_id}"): Way.SANDBOX,
    ("DELETE", "/v1/sandboxes/{sandbox_id}"): Way.SANDBOX,
    ("POST", "/v1/sandboxes/{sandbox_id}/pause"): Way.SANDBOX,
    ("POST", "/v1/sandboxes/{sandbox_id}/resume"): Way.SANDBOX,
    ("POST", "/v1/sandboxes/{sandbox_id}/restart"): Way.SANDBOX,
    ("GET", "/v1/sandboxes/{sandbox_id}/logs"): Way.SANDBOX,
    ("GET", "/v1/sandboxes/{sandbox_id}/usage"): Way.SANDBOX,
    ("PUT", "/v1/sandboxes/{sandbox_id}/files"): Way.SANDBOX,
    ("GET", "/v1/sandboxes/{sandbox_id}/files"): Way.SANDBOX,
    ("POST", "/v1/sandboxes/{sandbox_id}/exec"): Way.SANDBOX,
    ("GET", "/v1/exec/{session_id}"): Way.SESSION,
    ("GET", "/v1/exec/{session_id}/events"): Way.SESSION,
    ("GET", "/v1/exec/{session_id}/stream"): Way.SESSION,
    ("POST", "/v1/exec/{session_id}/stdin"): Way.SESSION,
    ("POST", "/v1/exec/{session_id}/close-stdin"): Way.SESSION,
    ("POST", "/v1/exec/{session_id}/signal"): Way.SESSION,
    ("GET", "/v1/demand"): Way.CLOSED,
    ("PUT", "/v1/capacity/ceilings"): Way.CLOSED,
    ("POST", "/v1/capacity/prepare"): Way.PREPARE,
    ("GET", "/v1/capacity/prepare"): Way.PREPARED,
    ("DELETE", "/v1/capacity/prepare/{prepare_id}"): Way.UNITS,
    ("POST", "/v1/builders/prepare"): Way.PREPARE,
    ("GET", "/v1/builders/prepare"): Way.PREPARED,
    ("DELETE", "/v1/builders/prepare/{prepare_id}"): Way.UNITS,
    ("GET", "/v1/nodes"): Way.CLOSED,
    ("POST", "/v1/nodes/{node_id}/drain"): Way.CLOSED,
    ("DELETE", "/v1/nodes/{node_id}"): Way.CLOSED,
    ("POST", "/v1/nodes/join-tokens"): Way.CLOSED,
    ("POST", "/v1/nodes/register"): Way.CLOSED,
    ("POST", "/v1/nodes/{node_id}/heartbeat"): Way.CLOSED,
    ("GET", "/v1/bundle/manifest"): Way.CLOSED,
    ("GET", "/v1/bundle/{file_name}"): Way.CLOSED,
    ("GET", "/v1/tokens"): Way.CLOSED,
    ("POST", "/v1/tokens"): Way.CLOSED,
    ("DELETE", "/v1/tokens/{token_id}"): Way.CLOSED,
    ("GET", "/v1/audit"): Way.CLOSED,
    ("GET", "/v1/usage"): Way.USAGE,
    ("GET", "/v1/policy"): Way.CLOSED,
}

OPTIONS: Final[dict[Row, dict[str, Any]]] = {
    ("PUT", "/v1/sandboxes/{sandbox_id}/files"): {"params": {"path": "mark"}, "data": b"changed"},
    ("GET", "/v1/sandboxes/{sandbox_id}/files"): {"params": {"path": "mark"}},
    ("POST", "/v1/sandboxes/{sandbox_id}/exec"): {"json": {"command": ["true"]}},
    ("POST", "/v1/exec/{session_id}/stdin"): {"json": {"data": "changed", "eof": True}},
    ("POST", "/v1/exec/{session_id}/signal"): {"json": {"signal": 9}},
}
"""What a call needs beside its path, so that it would do something if it were let through."""


def rows(*ways: Way) -> list[Row]:
    """Return the routes that are walked in one of these ways."""
    return [row for row, way in WALK.items() if way in ways]


@dataclass(frozen=True)
class Tenant:
    """A tenant's client, and the session that runs in its ``shared``."""

    name: str
    fleet: SmallFleet
    token: str
    session_id: str = ""

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send one call of the client."""
        headers = {"X-UCloud-Sandbox-Token": self.token}
        return requests.request(method, self.fleet.gateway.url + path, headers=headers, timeout=30, **options)

    def json(self, method: str, path: str, **options: Any) -> Any:
        """Send one call that succeeds, and return its answer."""
        answer = self.call(method, path, **options)
        assert answer.ok, answer.text
        return answer.json()

    def move_in(self) -> "Tenant":
        """Make what every tenant has, and one sandbox and one request for capacity that only this one has."""
        for name in ("shared", f"only-{self.name}"):
            self.json("POST", "/v1/sandboxes", json={"id": name, "labels": {"team": "same"}, **SMALL})
        for name in ("ahead", f"ahead-{self.name}"):
            units = {"id": name, "count": 2, "cpus": 3.0, "memory_mb": 77, "disk_mb": 77}
            self.json("POST", "/v1/capacity/prepare", json=units)
            self.json("POST", "/v1/builders/prepare", json={"id": f"{name}-b", "count": 2})
        self.json("PUT", "/v1/sandboxes/shared/files", params={"path": "mark"}, data=self.name.encode())
        started = self.json("POST", "/v1/sandboxes/shared/exec", json={"command": ["cat"], "stdin": True})
        return Tenant(self.name, self.fleet, self.token, started["session"]["id"])

    def belongings(self) -> dict[str, Any]:
        """Return everything that it has, but for the times at which it was used."""
        session = self.json("GET", f"/v1/exec/{self.session_id}")["session"]
        return {
            "sandboxes": self.json("GET", "/v1/sandboxes")["sandboxes"],
            "prepared": self.json("GET", "/v1/capacity/prepare"),
            "builders": self.json("GET", "/v1/builders/prepare"),
            "file": self.call("GET", "/v1/sandboxes/shared/files", params={"path": "mark"}).content,
            "session": {key: session[key] for key in ("status", "stdin_open", "last_sequence", "exit_code")},
        }


Tenants = dict[str, Tenant]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path_factory.mktemp("walk")) as running:
        yield running


@pytest.fixture(scope="module")
def tenants(fleet: SmallFleet) -> Tenants:
    made = {}
    for name in TENANTS:
        token = fleet.operator.create_token(TokenRequest(name=name, scope="client", tenant=name)).token
        made[name] = Tenant(name, fleet, token).move_in()
    return made


@pytest.fixture
def unharmed(tenants: Tenants) -> Iterator[None]:
    before = {name: tenant.belongings() for name, tenant in tenants.items()}
    yield
    assert {name: tenant.belongings() for name, tenant in tenants.items()} == before


def answer_to(tenant: Tenant, row: Row, name: str) -> tuple[int, str]:
    """Return status and body of a call that names something, without that name and the request's id."""
    method, template = row
    path = re.sub(r"\{\w+\}", name, template)
    answer = tenant.call(method, path, **OPTIONS.get(row, {}))
    body = re.sub(r'"request_id":"\w+"', "", answer.text)
    return answer.status_code, body.replace(name, "NAME")


def without_demand(answer: tuple[int, str]) -> tuple[int, str]:
    """Return an answer without the caller's own demand, whose age goes on."""
    return answer[0], re.sub(r'"oldest_pending_seconds":[^,]*,', "", answer[1])


def test_every_route_is_walked() -> None:
    assert set(WALK) == set(ACCESS)
    closed = {row for row, access in ACCESS.items() if access not in {RouteAccess.CLIENT, RouteAccess.OPEN}}
    assert set(rows(Way.CLOSED)) == closed
    assert set(rows(Way.OPEN)) == {row for row, access in ACCESS.items() if access is RouteAccess.OPEN}


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("row", rows(Way.SANDBOX), ids=" ".join)
def test_anothers_sandbox_is_one_that_is_not_there(tenants: Tenants, row: Row) -> None:
    for caller, owner in PAIRS:
        nothing = answer_to(tenants[caller], row, "nowhere")
        assert nothing[0] == (200 if row[0] == "DELETE" else 404)
        for name in (
            f"only-{owner}",
            f"{owner}..shared",
            f"{owner}..only-{owner}",
            f"{owner}..nowhere",
            "nobody..shared",
            f"{caller}..only-{owner}",
        ):
            answer = answer_to(tenants[caller], row, name)
            # What follows the caller's own prefix is named without it in the answer.
            shown = name.removeprefix(f"{caller}..")
            assert (answer[0], answer[1].replace(shown, "NAME")) == nothing, (caller, name)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("row", rows(Way.SESSION), ids=" ".join)
def test_anothers_session_is_one_that_is_not_there(tenants: Tenants, row: Row) -> None:
    def answered(caller: str, code: str, sandbox_id: str) -> tuple[int, str]:
        status, body = answer_to(tenants[caller], row, f"{code}.1.{sandbox_id}")
        return status, body.replace(code, "exec-CODE").replace(qualified(caller, sandbox_id), "NAME").replace(
            sandbox_id, "NAME"
        )

    never = f"exec-{'0' * 32}"
    for caller, owner in PAIRS:
        code = tenants[owner].session_id.split(".")[0]
        nothing = answered(caller, never, "nowhere")
        assert nothing[0] == 404
        for name in (f"{owner}..shared", f"{owner}..only-{owner}", f"{owner}..nowhere", "nobody..shared"):
            assert answered(caller, code, name) == answered(caller, never, name) == nothing, (caller, name)
        # A plain id is the caller's own sandbox, in which that session is as unknown as any.
        for name in ("shared", f"only-{caller}", qualified(caller, "shared")):
            assert answered(caller, code, name) == answered(caller, never, name), (caller, name)
        assert answered(caller, code, f"only-{owner}") == nothing


@pytest.mark.parametrize("code", [ErrorCode.INTERNAL, ErrorCode.EXEC_LOST, ErrorCode.SANDBOX_NOT_RUNNING])
def test_an_exec_that_failed_names_its_sandbox_as_its_client_does(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    def broken(_: FakeRuntime, sandbox_id: str, __: object) -> NoReturn:
        raise RuntimeFailure(code, f"sandbox {sandbox_id}: container sandbox-0a1b2c3d-{sandbox_id}-1 is gone")

    monkeypatch.setattr(FakeRuntime, "exec", broken)
    for tenant in tenants.values():
        start = tenant.call("POST", "/v1/sandboxes/shared/exec?wait_seconds=5", json={"command": ["true"]})
        session_id = start.json()["session"]["id"]
        path = f"/v1/exec/{session_id}"
        texts = [start.text, *(tenant.call("GET", path + what).text for what in ("", "/events", "/stream"))]
        for text in texts:
            assert "container sandbox-0a1b2c3d-shared-1 is gone" in text
            assert ".." not in text.replace(session_id, "")


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("row", rows(Way.UNITS), ids=" ".join)
def test_anothers_prepared_capacity_is_not_there(tenants: Tenants, row: Row) -> None:
    suffix = "-b" if "builders" in row[1] else ""
    for caller, owner in PAIRS:
        nothing = answer_to(tenants[caller], row, "nowhere")
        assert nothing[0] == 200
        for name in (f"ahead-{owner}{suffix}", f"{owner}..ahead{suffix}", f"{owner}..nowhere", "nobody..ahead"):
            assert answer_to(tenants[caller], row, name) == nothing, (caller, name)


@pytest.mark.usefixtures("unharmed")
def test_lists_labels_states_and_cursors_show_only_ones_own(tenants: Tenants) -> None:
    for name, tenant in tenants.items():
        own = ["shared", f"only-{name}"]
        for query in ({}, {"label": "team=same"}, {"state": "running"}):
            records = tenant.json("GET", "/v1/sandboxes", params=query)["sandboxes"]
            assert [(record["id"], record["spec"]["id"], record["tenant"]) for record in records] == [
                (sandbox_id, sandbox_id, name) for sandbox_id in own
            ]
        assert tenant.json("GET", "/v1/sandboxes", params={"state": "deleted"})["sandboxes"] == []
        assert tenant.call("GET", "/v1/sandboxes", params={"tenant": name}).status_code == 403
    for caller, owner in PAIRS:
        cursor = tenants[owner].json("GET", "/v1/sandboxes", params={"limit": 1})["next_cursor"]
        page = tenants[caller].json("GET", "/v1/sandboxes", params={"cursor": cursor})
        assert {record["tenant"] for record in page["sandboxes"]} <= {caller}


@pytest.mark.usefixtures("unharmed")
def test_usage_is_ones_own(tenants: Tenants) -> None:
    def used(caller: Tenant, **query: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = caller.json("GET", "/v1/usage", params=query)["items"]
        return items

    def metered(caller: Tenant) -> bool:
        return len(used(caller, by="sandbox")) == 2

    for name, tenant in tenants.items():
        wait_until(partial(metered, tenant), 20)
        (total,) = used(tenant)
        assert (total["tenant"], total["amounts"]["cpu_seconds"]) == (name, 2.0)
        assert tenant.call("GET", "/v1/usage", params={"tenant": name}).status_code == 403
        for by in ("sandbox", "hour"):
            items = used(tenant, by=by)
            assert {(item["tenant"], item["sandbox_id"]) for item in items} == {
                (name, "shared"),
                (name, f"only-{name}"),
            }
    for caller, owner in PAIRS:
        query = {"by": "sandbox", "limit": "1"}
        cursor = tenants[owner].json("GET", "/v1/usage", params=query)["next_cursor"]
        assert {item["tenant"] for item in used(tenants[caller], by="sandbox", cursor=cursor)} <= {caller}


@pytest.mark.usefixtures("unharmed")
def test_prepared_capacity_and_demand_are_ones_own(tenants: Tenants) -> None:
    for name, tenant in tenants.items():
        listed = tenant.json("GET", "/v1/capacity/prepare")
        assert {one["prepare_id"] for one in listed["prepared"]} == {"ahead", f"ahead-{name}"}
        assert listed["demand"]["prepared_resources"]["cpus"] == 12.0
        builders = tenant.json("GET", "/v1/builders/prepare")
        assert {one["prepare_id"] for one in builders["prepared_builders"]} == {"ahead-b", f"ahead-{name}-b"}
        assert builders["demand"]["prepared_builder_count"] == 4


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("row", rows(Way.MAKE, Way.PREPARE), ids=" ".join)
def test_no_id_reaches_into_another_tenant(tenants: Tenants, row: Row) -> None:
    body = SMALL if WALK[row] is Way.MAKE else {"count": 1, **({} if "builders" in row[1] else {"cpus": 1.0})}
    for caller, owner in PAIRS:
        answers = set()
        for name in (f"{owner}..shared", f"{owner}..ahead", f"{owner}..nowhere", "nobody..shared"):
            answer = tenants[caller].call(*row, json={"id": name, **body})
            answers.add((answer.status_code, re.sub(r'"request_id":"\w+"', "", answer.text)))
        ((status, _),) = answers
        assert status == 422


@pytest.mark.parametrize("row", rows(Way.MAKE, Way.PREPARE), ids=" ".join)
def test_an_id_that_only_another_has_is_free(tenants: Tenants, row: Row) -> None:
    body = SMALL if WALK[row] is Way.MAKE else {"count": 1, **({} if "builders" in row[1] else {"cpus": 1.0})}
    kept = {name: tenant.belongings() for name, tenant in tenants.items()}
    for caller, owner in PAIRS:
        name = f"only-{owner}" if WALK[row] is Way.MAKE else f"ahead-{owner}{'-b' if 'builders' in row[1] else ''}"
        answer = tenants[caller].call(*row, json={"id": name, **body})
        assert answer.status_code == 201, answer.text
        assert {tenants[owner].name: tenants[owner].belongings()} == {owner: kept[owner]}
        gone = tenants[caller].json("DELETE", f"{row[1]}/{name}")
        assert gone["deleted"]


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("row", rows(Way.CLOSED), ids=" ".join)
def test_what_is_not_for_clients_is_refused_alike(tenants: Tenants, row: Row) -> None:
    answers = {without_demand(answer_to(tenant, row, "nowhere")) for tenant in tenants.values()}
    ((status, body),) = answers
    assert status in {401, 403}
    assert not any(name in body for name in ("acme", "beta"))


@pytest.mark.usefixtures("unharmed")
def test_other_scopes_get_nowhere_and_learn_nothing(fleet: SmallFleet, tenants: Tenants) -> None:
    """A node's credential and a join token are refused before anything is looked up."""
    join = fleet.operator.join_token(JoinTokenRequest(instance="other", pool="cpu")).token
    request = RegisterRequest(
        node_url="http://127.0.0.1:1", instance="other", agent_version="1", total=Shape(), runtimes=[]
    )
    node = GatewayClient(fleet.gateway.url, join).register(request)
    unused = fleet.operator.join_token(JoinTokenRequest(instance="third", pool="cpu")).token
    for row in (row for row, access in ACCESS.items() if access is RouteAccess.CLIENT):
        for secret in (node.credential, unused, "none"):
            caller = Tenant("none", fleet, secret)
            answers = {
                answer_to(caller, row, name)
                for name in ("shared", "acme..shared", "nowhere", tenants["acme"].session_id, "ahead")
            }
            statuses = {status for status, _ in answers}
            assert statuses <= {401, 403}
            assert len(statuses) == 1
    fleet.operator.remove_node(node.node_id)


def test_operators_see_all_by_qualified_ids(fleet: SmallFleet, tenants: Tenants) -> None:
    ids = {qualified(name, own) for name in TENANTS for own in ("shared", f"only-{name}")}
    records = {record.id: record for record in fleet.operator.sandboxes()}
    assert set(records) == ids
    assert {record.tenant for record in records.values()} == set(TENANTS)
    assert all(record.spec.id == record.id for record in records.values())
    hashes = {records[qualified(name, "shared")].spec_hash for name in TENANTS}
    assert len(hashes) == 1
    operator = Tenant("operator", fleet, fleet.operator_token)
    for name in TENANTS:
        listed = operator.json("GET", "/v1/sandboxes", params={"tenant": name})["sandboxes"]
        assert {own_id(record["id"]) for record in listed} == {"shared", f"only-{name}"}
        shared = qualified(name, "shared")
        file = operator.call("GET", f"/v1/sandboxes/{shared}/files", params={"path": "mark"})
        assert file.text == name
        assert operator.json("GET", f"/v1/exec/{tenants[name].session_id}")["session"]["status"] == "running"
    demand = fleet.operator.demand()
    assert {one.tenant for one in demand.prepared} == set(TENANTS)
    assert len(demand.prepared) == 2 * len(TENANTS)


def test_what_a_tenant_without_tokens_owns_stays_and_operators_delete_it(fleet: SmallFleet) -> None:
    made = fleet.operator.create_token(TokenRequest(name="leaver", scope="client", tenant="leaver"))
    leaver = Tenant("leaver", fleet, made.token)
    leaver.json("POST", "/v1/sandboxes", json={"id": "shared", **SMALL})
    fleet.operator.revoke_token(made.record.id)
    assert leaver.call("GET", "/v1/sandboxes/shared").status_code == 401
    assert fleet.operator.sandbox("leaver..shared").state == "running"
    assert fleet.operator.delete_sandbox("leaver..shared").deleted
