"""Creates, looks and deletes, with what the API does to them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from providers.base import (
    DEPLOYMENT_LABEL,
    IMAGE_LABEL,
    OPERATION_LABEL,
    Access,
    Applied,
    Deleted,
    ErrorKind,
    Instance,
    Phase,
    ProviderError,
    Ref,
    Scope,
)
from tests.unit.providers.hetzner.lab import Lab, order


def phase(lab: Lab, made: Instance) -> Phase | None:
    got = lab.provider().get(Ref(id=made.id))
    return got.phase if got is not None else None


# -- create -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("do", ["lost", "hang", "garbage", "error", "html"])
def test_a_lost_answer_is_settled_by_the_next_try(lab: Lab, do: str) -> None:
    lab.cloud.fault(do, "POST /servers", seconds=0.6, apply=True)
    with pytest.raises(ProviderError) as caught:
        lab.provider(read_seconds=0.3).create(order())
    assert caught.value.applied is Applied.MAYBE
    found = lab.provider().create(order())
    assert found.adopted
    assert [str(server["id"]) for server in lab.cloud.made("op1")] == [found.id]


@pytest.mark.parametrize("code", ["quota", "capacity", "config"])
def test_an_earlier_try_is_found_behind_any_refusal(lab: Lab, code: str) -> None:
    """Its own server fills the quota or the place; the API tells of that first, and not that the name is taken."""
    first = lab.provider().create(order())
    if code == "quota":
        lab.cloud.knobs(server_limit=1)
    status, name = {"quota": (403, ""), "capacity": (412, "resource_unavailable"), "config": (422, "invalid_input")}[
        code
    ]
    if name:
        lab.cloud.fault("error", "POST /servers", status=status, code=name)
    again = lab.provider().create(order())
    assert (again.id, again.adopted) == (first.id, True)


@pytest.mark.parametrize("fault", [{"do": "drop"}, {"do": "error", "status": 401, "code": "unauthorized"}])
def test_a_look_that_fails_after_a_refusal_leaves_it_open(lab: Lab, fault: dict[str, Any]) -> None:
    lab.provider().create(order())
    lab.cloud.fault(on="GET /servers", **fault)
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order())
    assert caught.value.applied is Applied.MAYBE


def test_a_name_that_is_free_again_is_asked_for_again(lab: Lab) -> None:
    lab.cloud.fault("error", "POST /servers", status=409, code="uniqueness_error")
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order())
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.MAYBE)


@pytest.mark.parametrize("labels", [{}, {OPERATION_LABEL: "op1"}, {DEPLOYMENT_LABEL: "unit"}])
def test_what_is_not_of_the_operation_is_never_adopted(lab: Lab, labels: dict[str, str]) -> None:
    lab.provider().create(order())
    lab.cloud.ask("server", name=order().name, labels=labels)
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order())
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.EXISTS, Applied.NO)
    assert lab.provider().list().instances == ()
    assert lab.provider().delete(Ref(name=order().name)) is Deleted.GONE
    assert len(lab.cloud.here()) == 1


def test_many_tries_at_once_make_one_server(lab: Lab) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: lab.provider().create(order()), range(8)))
    assert len({instance.id for instance in made}) == 1
    assert [instance.adopted for instance in made].count(False) == 1
    assert len(lab.cloud.made("op1")) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "-unit"},
        {"name": "Unit"},
        {"name": "unit.cpu"},
        {"name": "u" * 64},
        {"labels": {"hetzner.cloud/x": "y"}},
        {"labels": {"a b": "y"}},
        {"labels": {"a": "sha256:abc"}},
        {"labels": {"a": "x" * 64}},
        {"user_data": "é" * 16_385},
        {"image": ""},
        {"deployment": "other"},
    ],
)
def test_what_the_api_would_refuse_is_not_sent(lab: Lab, changes: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order(**changes))
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.CONFIG, Applied.NO)
    assert lab.cloud.audit()["calls"] == 0


def test_an_image_that_is_gone_halts_the_pool(lab: Lab) -> None:
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order(image="debian-3"))
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.CONFIG, Applied.NO)


def test_the_newest_snapshot_with_the_labels_is_pinned(lab: Lab) -> None:
    snapshot = {"type": "snapshot", "labels": {"role": "node"}}
    old = lab.cloud.add("images", **snapshot)
    lab.advance(60)
    new = lab.cloud.add("images", **snapshot)
    lab.advance(60)
    lab.cloud.add("images", **{**snapshot, "architecture": "arm"})
    lab.cloud.add("images", **{**snapshot, "status": "creating"})
    lab.cloud.add("images", **{**snapshot, "labels": {"role": "builder"}})
    made = lab.provider(image="label:role=node").create(order(image=""))
    assert made.labels[IMAGE_LABEL] == str(new)
    assert lab.provider().create(order(2, image=str(old))).name == "unit-cpu-op2"


def test_no_snapshot_is_a_mistake_of_the_settings(lab: Lab) -> None:
    with pytest.raises(ProviderError, match="no snapshot") as caught:
        lab.provider().create(order(image="label:role=node"))
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.CONFIG, Applied.NO)


# -- phases -----------------------------------------------------------------------------------------------------------


def test_a_newborn_is_booting_through_all_its_states(lab: Lab) -> None:
    made = lab.provider().create(order())
    seen: dict[str, Phase | None] = {}
    for _ in range(20):
        (server,) = lab.cloud.here()
        seen[server["status"]] = phase(lab, made)
        lab.advance(1)
    assert seen == {
        "initializing": Phase.BOOTING,
        "off": Phase.BOOTING,
        "starting": Phase.BOOTING,
        "running": Phase.RUNNING,
    }


@pytest.mark.parametrize("at", ["initializing", "off", "starting"])
def test_a_server_that_is_stuck_goes_on_booting(lab: Lab, at: str) -> None:
    lab.cloud.fault("stuck", "POST /servers", at=at)
    made = lab.provider().create(order())
    lab.advance(300)
    assert lab.cloud.here()[0]["status"] == at
    assert phase(lab, made) is Phase.BOOTING
    (seen,) = lab.provider().list().instances
    assert seen.detail.startswith(at)
    lab.advance(3600)
    # It has been off for an hour with nothing at work on it: whether it ever ran, nobody will start it now.
    assert phase(lab, made) is (Phase.LOST if at == "off" else Phase.BOOTING)


def test_a_failed_start_is_lost_in_time(lab: Lab) -> None:
    lab.cloud.knobs(start_fails=True)
    made = lab.provider().create(order())
    lab.advance(599)
    assert phase(lab, made) is Phase.BOOTING
    assert [each.progress_at for each in lab.provider().list().instances] == [None]
    lab.advance(2)
    assert phase(lab, made) is Phase.LOST


def test_off_with_an_action_at_work_is_booting_however_old(lab: Lab) -> None:
    """A large snapshot may take long to be copied."""
    lab.cloud.knobs(start_seconds=5000)
    made = lab.provider().create(order())
    lab.cloud.ask("server", name=made.name, stuck_at="off")
    lab.advance(1000)
    assert lab.cloud.here()[0]["status"] == "off"
    assert phase(lab, made) is Phase.BOOTING
    listing = lab.provider().list()
    assert [each.progress_at for each in listing.instances] == [listing.taken_at]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("off", Phase.LOST),
        ("stopping", Phase.LOST),
        ("rebuilding", Phase.LOST),
        ("deleting", Phase.STOPPING),
        ("migrating", Phase.RUNNING),
        ("unknown", Phase.RUNNING),
        ("something_new", Phase.RUNNING),
        ("starting", Phase.BOOTING),
    ],
)
def test_after_having_run(lab: Lab, status: str, expected: Phase) -> None:
    made = lab.provider().create(order())
    lab.advance(3600)
    assert phase(lab, made) is Phase.RUNNING
    lab.cloud.ask("server", name=made.name, status=status)
    assert phase(lab, made) is expected


# -- delete -----------------------------------------------------------------------------------------------------------


def test_a_delete_whose_answer_is_lost_is_found_done(lab: Lab) -> None:
    made = lab.provider().create(order())
    lab.advance(60)
    lab.cloud.fault("lost", "DELETE /servers/*")
    with pytest.raises(ProviderError) as caught:
        lab.provider().delete(Ref(id=made.id))
    assert caught.value.applied is Applied.MAYBE
    assert lab.provider().delete(Ref(id=made.id)) is Deleted.ACCEPTED
    lab.advance(10)
    assert lab.provider().delete(Ref(id=made.id)) is Deleted.GONE


def test_a_server_that_goes_between_look_and_delete_is_gone(lab: Lab) -> None:
    made = lab.provider().create(order())
    lab.cloud.fault("delete", f"GET /servers/{made.id}")
    assert lab.provider().delete(Ref(id=made.id)) is Deleted.GONE


def test_id_and_name_must_be_of_one_server(lab: Lab) -> None:
    first, second = lab.provider().create(order(1)), lab.provider().create(order(2))
    mixed = Ref(id=first.id, name=second.name)
    assert lab.provider().get(mixed) is None
    assert lab.provider().delete(mixed) is Deleted.GONE
    assert len(lab.cloud.here()) == 2


@pytest.mark.parametrize("ref", [Ref(id="x"), Ref(id="-1"), Ref(id="9" * 30), Ref(name="a/b"), Ref(id="²")])
def test_what_names_nothing_is_nothing(lab: Lab, ref: Ref) -> None:
    assert lab.provider().get(ref) is None
    assert lab.provider().delete(ref) is Deleted.GONE


# -- leftovers --------------------------------------------------------------------------------------------------------

MINE = {DEPLOYMENT_LABEL: "unit", OPERATION_LABEL: "op1"}


def test_what_carries_the_labels_and_serves_nobody_is_left_over(lab: Lab) -> None:
    made = lab.provider().create(order())
    expected = {f"{kind}:{lab.cloud.add(f'{kind}s', name='a', labels=MINE)}" for kind in ("volume", "primary_ip")}
    expected.add(f"floating_ip:{lab.cloud.add('floating_ips', name='a', labels=MINE)}")
    lab.cloud.add("volumes", name="used", labels=MINE, server=int(made.id))
    lab.cloud.add("volumes", name="state of the gateway", labels={DEPLOYMENT_LABEL: "unit"})
    lab.cloud.add("volumes", name="somebody's")
    lab.cloud.add("primary_ips", name="theirs", labels={**MINE, DEPLOYMENT_LABEL: "other"})
    found = lab.provider().list().leftovers
    assert set(found) == expected
    for leftover in found:
        assert lab.provider().delete(Ref(id=leftover)) is Deleted.GONE
        assert lab.provider().delete(Ref(id=leftover)) is Deleted.GONE
    assert lab.provider().list().leftovers == ()
    assert [volume["name"] for volume in lab.cloud.audit()["volumes"]] == ["used", "state of the gateway", "somebody's"]


def test_only_what_is_ours_and_free_is_deleted(lab: Lab) -> None:
    made = lab.provider().create(order())
    theirs = lab.cloud.add("volumes", name="theirs")
    used = lab.cloud.add("volumes", name="used", labels=MINE, server=int(made.id))
    assert lab.provider().delete(Ref(id=f"volume:{theirs}")) is Deleted.GONE
    with pytest.raises(ProviderError) as caught:
        lab.provider().delete(Ref(id=f"volume:{used}"))
    assert caught.value.kind is ErrorKind.BUSY
    assert len(lab.cloud.audit()["volumes"]) == 2


def test_addresses_that_stay_behind_are_known_again(lab: Lab) -> None:
    lab.cloud.knobs(ips_auto_delete=False)
    made = lab.provider().create(order())
    lab.provider().delete(Ref(id=made.id))
    assert lab.provider().list().leftovers == (), "they still serve it"
    lab.advance(10)
    found = lab.provider().list().leftovers
    assert sorted(name.split(":")[0] for name in found) == ["primary_ip", "primary_ip"]
    for leftover in found:
        lab.provider().delete(Ref(id=leftover))
    assert lab.cloud.audit()["primary_ips"] == []


def test_addresses_that_stay_behind_use_the_projects_limit_up_until_they_are_swept(lab: Lab) -> None:
    """There is no API that tells limits; a leak shows when a create is refused."""
    lab.cloud.knobs(ips_auto_delete=False, primary_ip_limit=2)
    made = lab.provider().create(order())
    lab.provider().delete(Ref(id=made.id))
    lab.advance(10)
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order(2))
    assert (caught.value.kind, caught.value.applied, caught.value.scope) == (
        ErrorKind.QUOTA,
        Applied.NO,
        Scope.PROVIDER,
    )
    assert "primary_ip_limit" in str(caught.value)
    for leftover in lab.provider().list().leftovers:
        assert lab.provider().delete(Ref(id=leftover)) is Deleted.GONE
    assert lab.provider().create(order(2)).phase is Phase.BOOTING


@pytest.mark.parametrize(
    ("settings", "labels", "expected"),
    [({}, {}, 0), ({"claim": ["volume"]}, {}, 1), ({"claim": ["volume"]}, {"owner": "me"}, 0)],
)
def test_a_volume_is_claimed_only_on_demand_and_if_nobody_else_did(
    lab: Lab, settings: dict[str, Any], labels: dict[str, str], expected: int
) -> None:
    made = lab.provider().create(order())
    lab.cloud.add("volumes", name="data", labels=labels, server=int(made.id))
    lab.provider(**settings).delete(Ref(id=made.id))
    lab.advance(10)
    assert len(lab.provider().list().leftovers) == expected


def test_a_mark_that_fails_holds_up_no_delete(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.cloud.knobs(ips_auto_delete=False)
    made = lab.provider().create(order())
    lab.cloud.fault("error", "PUT /primary_ips/*", times=None)
    assert lab.provider().delete(Ref(id=made.id)) is Deleted.ACCEPTED
    assert "may stay behind" in caplog.text


def test_leftovers_are_looked_for_now_and_then_and_after_each_delete(lab: Lab) -> None:
    provider = lab.provider(leftovers_seconds=300)
    made = provider.create(order())

    def calls_of_a_listing() -> int:
        before = int(lab.cloud.audit()["calls"])
        provider.list()
        return int(lab.cloud.audit()["calls"]) - before

    assert [calls_of_a_listing() for _ in range(3)] == [4, 1, 1]
    lab.monotonic += 300
    assert calls_of_a_listing() == 4
    provider.delete(Ref(id=made.id))
    assert calls_of_a_listing() == 4


# -- networks and addresses -------------------------------------------------------------------------------------------


def test_a_private_server_is_reached_at_its_private_address(lab: Lab) -> None:
    network = lab.cloud.add("networks", name="fleet", ip_range="10.0.0.0/8", subnets=[{"ip_range": "10.0.0.0/16"}])
    provider = lab.provider(networks=[network], ipv4=False, ipv6=False)
    made = provider.create(order())
    assert made.address is None
    assert provider.connect(made) is None
    lab.advance(60)
    found = provider.get(Ref(id=made.id))
    assert found is not None
    assert found.address is not None
    assert found.address.startswith("10.")
    assert provider.connect(found) == Access(found.address, 22, "root")
    assert lab.cloud.audit()["primary_ips"] == []


def test_a_network_without_a_subnet_waits(lab: Lab) -> None:
    network = lab.cloud.add("networks", name="fleet", ip_range="10.0.0.0/8", subnets=[])
    with pytest.raises(ProviderError) as caught:
        lab.provider(networks=[network]).create(order())
    assert caught.value.code == "no_subnet_available"


def test_a_firewall_is_applied_by_its_id(lab: Lab) -> None:
    firewall = lab.cloud.add("firewalls", name="workers")
    lab.provider(firewalls=[firewall]).create(order())
    with pytest.raises(ProviderError) as caught:
        lab.provider(firewalls=[firewall + 1000]).create(order(2))
    assert caught.value.kind is ErrorKind.CONFIG


@pytest.mark.parametrize(("settings", "start"), [({}, "203."), ({"ipv4": False}, "2001:db8:")])
def test_a_public_server_is_reached_at_its_public_address(lab: Lab, settings: dict[str, Any], start: str) -> None:
    provider = lab.provider(**settings)
    access = provider.connect(provider.create(order()))
    assert access is not None
    assert access.host.startswith(start)
    assert "/" not in access.host


def test_a_foreign_instance_can_be_connected_by_what_it_says(lab: Lab) -> None:
    made = replace(lab.provider().create(order()), address="192.0.2.1")
    assert lab.provider().connect(made) == Access("192.0.2.1", 22, "root")
