"""The six methods over servers, with what the API does to them."""

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
)
from tests.unit.providers.hetzner.lab import Lab, order


def phase(lab: Lab, made: Instance) -> Phase | None:
    got = lab.provider().get(Ref(id=made.id))
    return got.phase if got is not None else None


# -- create -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("do", ["lost", "hang", "garbage", "error", "html"])
def test_a_lost_answer_is_settled_by_the_next_create(lab: Lab, do: str) -> None:
    lab.cloud.fault(do, "POST /servers", seconds=0.6, apply=True)
    with pytest.raises(ProviderError) as caught:
        lab.provider(read_seconds=0.3).create(order())
    assert caught.value.applied is Applied.MAYBE
    found = lab.provider().create(order())
    assert found.adopted
    assert [str(server["id"]) for server in lab.cloud.made("op1")] == [found.id]


@pytest.mark.parametrize("code", ["quota", "capacity", "config"])
def test_a_create_refused_because_of_its_own_server_adopts_it(lab: Lab, code: str) -> None:
    """Its own server fills the quota or the place; the API reports that first, not that the name is taken."""
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
def test_a_failed_lookup_after_a_refusal_leaves_the_effect_unknown(lab: Lab, fault: dict[str, Any]) -> None:
    lab.provider().create(order())
    lab.cloud.fault(on="GET /servers", **fault)
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order())
    assert caught.value.applied is Applied.MAYBE


def test_a_name_that_is_free_again_is_transient(lab: Lab) -> None:
    lab.cloud.fault("error", "POST /servers", status=409, code="uniqueness_error")
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order())
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.MAYBE)


@pytest.mark.parametrize("labels", [{}, {OPERATION_LABEL: "op1"}, {DEPLOYMENT_LABEL: "unit"}])
def test_a_server_of_another_operation_is_never_adopted(lab: Lab, labels: dict[str, str]) -> None:
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
def test_an_invalid_order_is_not_sent(lab: Lab, changes: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order(**changes))
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.CONFIG, Applied.NO)
    assert lab.cloud.audit()["calls"] == 0


def test_a_missing_image_is_a_config_error(lab: Lab) -> None:
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


def test_a_missing_snapshot_is_a_config_error(lab: Lab) -> None:
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
def test_a_stuck_server_stays_booting(lab: Lab, at: str) -> None:
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


def test_a_failed_start_is_lost_after_newborn_seconds(lab: Lab) -> None:
    lab.cloud.knobs(start_fails=True)
    made = lab.provider().create(order())
    lab.advance(599)
    assert phase(lab, made) is Phase.BOOTING
    assert [each.progress_at for each in lab.provider().list().instances] == [None]
    lab.advance(2)
    assert phase(lab, made) is Phase.LOST


def test_off_and_locked_is_booting_at_any_age(lab: Lab) -> None:
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
def test_phases_after_a_server_has_run(lab: Lab, status: str, expected: Phase) -> None:
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


def test_a_server_deleted_between_lookup_and_delete_is_gone(lab: Lab) -> None:
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
def test_a_ref_that_names_nothing_is_none_and_gone(lab: Lab, ref: Ref) -> None:
    assert lab.provider().get(ref) is None
    assert lab.provider().delete(ref) is Deleted.GONE


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


def test_a_network_without_a_subnet_is_refused(lab: Lab) -> None:
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


def test_connect_uses_the_address_of_the_instance(lab: Lab) -> None:
    made = replace(lab.provider().create(order()), address="192.0.2.1")
    assert lab.provider().connect(made) == Access("192.0.2.1", 22, "root")
