"""Side resources that outlive their server: found, claimed and deleted."""

from typing import Any

import pytest

from providers.base import (
    DEPLOYMENT_LABEL,
    OPERATION_LABEL,
    Applied,
    Deleted,
    ErrorKind,
    Phase,
    ProviderError,
    Ref,
    Scope,
)
from tests.unit.providers.hetzner.lab import Lab, order

MINE = {DEPLOYMENT_LABEL: "unit", OPERATION_LABEL: "op1"}


def test_labelled_and_unused_side_resources_are_leftovers(lab: Lab) -> None:
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


def test_addresses_that_stay_behind_are_claimed_and_found(lab: Lab) -> None:
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
    """There is no API that returns limits; a leak shows when a create is refused."""
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


def test_a_failed_claim_delays_no_delete(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.cloud.knobs(ips_auto_delete=False)
    made = lab.provider().create(order())
    lab.cloud.fault("error", "PUT /primary_ips/*", times=None)
    assert lab.provider().delete(Ref(id=made.id)) is Deleted.ACCEPTED
    assert "may stay behind" in caplog.text


def test_leftovers_are_listed_at_intervals_and_after_each_delete(lab: Lab) -> None:
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
