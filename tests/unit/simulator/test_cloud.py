"""The simulated cloud: its bill and its stock."""

import random
from datetime import timedelta

import pytest

from providers.base import OPERATION_LABEL, POOL_LABEL, Applied, Billing, Create, ErrorKind, ProviderError, Ref
from providers.testing.fake import EPOCH
from simulator.cloud import simulated_provider
from simulator.settings import CloudSettings


def a_cloud(**changes: object) -> CloudSettings:
    offer = {"type": "t", "location": "l", "cpus": 4, "memory_mb": 8192, "disk_mb": 80_000, "price": "0.5"}
    return CloudSettings.model_validate({"offers": [{**offer, **changes.pop("offer", {})}], **changes})  # type: ignore[dict-item]


def order(name: str) -> Create:
    labels = {OPERATION_LABEL: name, POOL_LABEL: "cpu"}
    return Create(name, name, "d", "cpu", "t", "l", "image", "", labels)


@pytest.mark.parametrize(
    ("billing", "euros"), [(Billing.PER_SECOND, 0.5 * 4000 / 3600), (Billing.HOURLY_ROUND_UP, 1.0)]
)
def test_the_bill_follows_the_billing_of_the_cloud(billing: Billing, euros: float) -> None:
    provider = simulated_provider(a_cloud(billing=billing.value, delete_seconds=0), "d", random.Random(1))
    provider.create(order("vm1"))
    provider.cloud.advance(4000.0)
    provider.delete(Ref(name="vm1"))
    provider.cloud.advance(9000.0)
    assert provider.instances[0].cost(billing, 13_000.0) == pytest.approx(euros)
    assert provider.caps.billing is billing


def test_what_is_out_of_stock_is_refused_until_one_is_gone() -> None:
    provider = simulated_provider(a_cloud(offer={"stock": 1}), "d", random.Random(1))
    provider.create(order("vm1"))
    provider.create(order("vm1"))  # the same order again is no second one
    with pytest.raises(ProviderError) as refused:
        provider.create(order("vm2"))
    assert (refused.value.kind, refused.value.applied) == (ErrorKind.CAPACITY, Applied.NO)
    provider.delete(Ref(name="vm1"))
    provider.cloud.advance(60.0)
    provider.create(order("vm2"))
    assert [machine.name for machine in provider.instances] == ["vm1", "vm2"]
    assert provider.at(60.0) == EPOCH + timedelta(seconds=60)
