"""Jobs, products and orders, without a network."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from providers.base import (
    DEPLOYMENT_LABEL,
    NAME_LABEL,
    OPERATION_LABEL,
    USER_DATA_LABEL,
    Access,
    Applied,
    Create,
    ErrorKind,
    Phase,
    ProviderError,
    Scope,
)
from providers.ucloud import mapping
from providers.ucloud.models import Job, SupportedProduct
from providers.ucloud.settings import UCloudSettings, parse
from tests.fakes.ucloud.catalogue import Product
from tests.fakes.ucloud.lab import order


def settings(**given: Any) -> UCloudSettings:
    return parse({"api_token_env": "X", **given})


def job(state: str = "RUNNING", *, started: bool = True, **fields: Any) -> Job:
    return Job.model_validate(
        {
            "id": "7",
            "createdAt": 1_787_300_000_000,
            "specification": {
                "name": "renamed by a person",
                "product": {"id": "p", "category": "c", "provider": "ucloud"},
                "labels": {NAME_LABEL: "fleet-cpu-a", USER_DATA_LABEL: "join-token"},
            },
            "status": {"state": state, "startedAt": 1_787_300_060_000 if started else None},
            **fields,
        }
    )


def updates_of(*updates: tuple[str | None, str | None]) -> list[dict[str, Any]]:
    return [{"timestamp": n, "state": state, "status": text} for n, (state, text) in enumerate(updates)]


def sold(**fields: Any) -> SupportedProduct:
    status = fields.pop("status", "AVAILABLE")
    product = Product(**{"name": "p", "category": "c", **fields})
    return SupportedProduct.model_validate(product.support(status))


# -- phases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "started", "phase"),
    [
        ("IN_QUEUE", False, Phase.BOOTING),
        ("SUSPENDED", False, Phase.BOOTING),
        ("RUNNING", True, Phase.RUNNING),
        ("RUNNING", False, Phase.RUNNING),
        ("SUSPENDED", True, Phase.LOST),
        ("IN_QUEUE", True, Phase.LOST),
        ("SUCCESS", True, Phase.GONE),
        ("FAILURE", False, Phase.GONE),
        ("EXPIRED", True, Phase.GONE),
        ("CANCELING", True, Phase.RUNNING),
        ("CANCELING", False, Phase.BOOTING),
    ],
)
def test_the_phase_of_a_state(state: str, started: bool, phase: Phase) -> None:
    assert mapping.phase_of(job(state, started=started)) is phase


def test_stopping_is_what_was_asked_until_the_end_is_read() -> None:
    assert mapping.phase_of(job("RUNNING"), is_stopping=True) is Phase.STOPPING
    assert mapping.phase_of(job("SUCCESS"), is_stopping=True) is Phase.GONE


def test_an_instance_keeps_the_name_of_its_order_and_hides_what_was_for_the_guest() -> None:
    seen = mapping.instance(job(updates=updates_of((None, "no machines"))))
    assert seen.name == "fleet-cpu-a"
    assert "join-token" not in repr(seen)
    assert seen.detail == "RUNNING: no machines"


def test_a_list_that_is_null_is_empty() -> None:
    assert mapping.instance(job(updates=None)).detail == "RUNNING"


@pytest.mark.parametrize(
    ("updates", "step"),
    [
        ([], None),
        ([("IN_QUEUE", None), (None, "There are currently no machines available to run your job.")], None),
        ([("IN_QUEUE", None), (None, "Failed to schedule job: no disk")], None),
        ([("IN_QUEUE", None), (None, "SSH: Connected! Available at: ssh ucloud@h -p 7")], 1),
        ([("IN_QUEUE", None), ("SUSPENDED", "The virtual machine is powered off."), (None, "a word")], 1),
    ],
)
def test_progress_counts_steps_and_not_waiting(updates: list[tuple[str | None, str | None]], step: int | None) -> None:
    seen = mapping.instance(job("SUSPENDED", started=False, updates=updates_of(*updates)))
    assert seen.progress_at == (datetime.fromtimestamp(step / 1000, UTC) if step is not None else None)


def test_a_run_is_progress_and_paid_time_expires() -> None:
    assert mapping.instance(job()).progress_at == datetime.fromtimestamp(1_787_300_060, UTC)
    assert mapping.instance(job()).expires_at is None
    ending = job(status={"state": "RUNNING", "expiresAt": 1_787_386_400_000})
    assert mapping.instance(ending).expires_at == datetime.fromtimestamp(1_787_386_400, UTC)


# -- login ------------------------------------------------------------------------------------------------------------

SSH = "SSH: Connected! Available at: ssh ucloud@ssh.example.net -p {}"


def test_the_last_port_counts_and_is_gone_once_the_machine_stopped() -> None:
    boot = [("IN_QUEUE", None), (None, SSH.format(2001)), ("SUSPENDED", "off"), ("RUNNING", None)]
    assert mapping.access(job(updates=updates_of(*boot))) == Access("ssh.example.net", 2001, "ucloud")
    assert mapping.access(job("SUSPENDED", updates=updates_of(*boot, ("SUSPENDED", "off")))) is None
    again = [
        *boot,
        ("SUSPENDED", "off"),
        ("IN_QUEUE", None),
        (None, SSH.format(2002)),
        ("SUSPENDED", "off"),
        ("RUNNING", None),
    ]
    assert mapping.access(job(updates=updates_of(*again))) == Access("ssh.example.net", 2002, "ucloud")


def test_an_ended_job_has_no_address() -> None:
    assert mapping.access(job("SUCCESS", updates=updates_of((None, SSH.format(2001))))) is None


def test_other_texts_are_no_address() -> None:
    assert mapping.access(job(updates=updates_of((None, "see ssh ucloud@x -p 1"), (None, "SSH: failed")))) is None


# -- offers -----------------------------------------------------------------------------------------------------------


def test_an_offer_has_what_a_guest_sees() -> None:
    (offer,) = mapping.offers([sold(cpu=5, memory=16)], settings(disk_gb=20))
    assert (offer.type, offer.location) == ("p", "ucloud")
    assert offer.resources.cpus == 4
    assert offer.resources.memory_mb == 15258
    assert offer.resources.disk_mb == 20480


def test_one_core_boots_with_two() -> None:
    (offer,) = mapping.offers([sold(cpu=1)], settings())
    assert offer.resources.cpus == 2


@pytest.mark.parametrize(("status", "available"), [("AVAILABLE", True), ("BUSY", True), (None, True), ("FULL", False)])
def test_the_queue_status_is_the_hint(status: str | None, available: bool) -> None:
    (offer,) = mapping.offers([sold(status=status)], settings())
    assert offer.available is available


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"vm": False}, {}),
        ({"gpu": 1}, {}),
        ({"provider": "other"}, {}),
        ({"cpu": 0}, {}),
    ],
)
def test_what_cannot_be_a_machine_here_is_no_offer(fields: dict[str, Any], given: dict[str, Any]) -> None:
    assert mapping.offers([sold(**fields)], settings(**given)) == []


def test_gpus_are_sold_once_they_are_allowed() -> None:
    (offer,) = mapping.offers([sold(gpu=2)], settings(allow_gpu=True))
    assert offer.resources.gpus == 2


def test_a_price_needs_an_exchange_rate() -> None:
    (free,) = mapping.offers([sold(price=1_500_000)], settings())
    assert free.price_per_hour is None
    (priced,) = mapping.offers([sold(price=1_500_000)], settings(euro_per_unit={"c": "0.134"}))
    assert priced.price_per_hour == Decimal("0.201")


@pytest.mark.parametrize(
    ("category", "price"),
    [
        ({"accountingFrequency": "PERIODIC_MINUTE"}, Decimal(60)),
        ({"accountingFrequency": "PERIODIC_DAY"}, Decimal(1) / 24),
        ({"accountingFrequency": "ONCE"}, None),
        ({"accountingUnit": {"floatingPoint": False}}, Decimal(1_000_000)),
        ({"freeToUse": True}, Decimal(0)),
    ],
)
def test_a_price_follows_how_its_category_is_counted(category: dict[str, Any], price: Decimal | None) -> None:
    body = Product("p", "c", price=1_000_000).support("AVAILABLE")
    body["product"]["category"] |= category
    (offer,) = mapping.offers([SupportedProduct.model_validate(body)], settings(euro_per_unit={"c": "1"}))
    assert offer.price_per_hour == price


# -- orders -----------------------------------------------------------------------------------------------------------


def refused(want: Create, *products: SupportedProduct, **given: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        mapping.specification(want, mapping.product_for(want, products, settings(**given)), settings(**given))
    assert caught.value.applied is Applied.NO
    return caught.value


def test_an_order_is_one_machine_with_everything_in_it() -> None:
    given = settings(bootstrap_folder="/12/boot/ab12", private_networks=["77"], disk_gb=40)
    want = order(type="p", user_data="token", labels={"Fleet/Pool": "cpu"})
    spec = mapping.specification(want, sold(), given)
    assert spec["replicas"] == 1
    assert spec["sshEnabled"] is False
    assert spec["timeAllocation"] is None
    assert spec["application"] == {"name": "vm-ubuntu", "version": "24.04"}
    assert spec["product"] == {"id": "p", "category": "c", "provider": "ucloud"}
    assert spec["parameters"] == {"diskSize": {"type": "integer", "value": 40}}
    assert spec["hostname"] == want.name
    assert spec["resources"] == [
        {"type": "file", "path": "/12/boot/ab12", "mountPath": "", "readOnly": True},
        {"type": "private_network", "id": "77"},
    ]
    assert spec["labels"] == {
        "fleet/pool": "cpu",
        DEPLOYMENT_LABEL: "fleet",
        OPERATION_LABEL: "op1",
        NAME_LABEL: want.name,
        USER_DATA_LABEL: "token",
        "ucloud.dk/init-script": "/work/ab12/init.sh",
        "ucloud.dk/initscript": "/work/ab12/init.sh",
    }


def test_without_a_folder_nothing_is_mounted_or_run() -> None:
    spec = mapping.specification(order(type="p"), sold(), settings())
    assert spec["resources"] == []
    assert spec["hostname"] is None
    assert not any(key.startswith("ucloud.dk/") for key in mapping.labels(order(), settings()))


@pytest.mark.parametrize("image", ["vm-ubuntu", "/24.04", "vm-ubuntu/", ""])
def test_an_image_is_an_application_and_a_version(image: str) -> None:
    assert refused(order(type="p", image=image), sold()).kind is ErrorKind.CONFIG


@pytest.mark.parametrize(
    "labels",
    [{"a": "1", "A": "2"}, {"ucloud.dk/stack": "x"}, {"x" * 257: ""}, {"two\nlines": ""}, {" ": ""}],
)
def test_labels_that_would_not_come_back_are_refused(labels: dict[str, str]) -> None:
    assert refused(order(type="p", labels=labels), sold()).kind is ErrorKind.CONFIG


def test_user_data_needs_a_script_that_reads_it() -> None:
    assert "no bootstrap_folder" in str(refused(order(type="p", user_data="x"), sold()))


@pytest.mark.parametrize(
    ("product", "words", "kind"),
    [
        (sold(vm=False), "takes no virtual machines", ErrorKind.CONFIG),
        (sold(gpu=1), "allow_gpu is off", ErrorKind.CONFIG),
        (sold(provider="other"), "no such product", ErrorKind.CONFIG),
        (sold(name="q"), "no such product", ErrorKind.CONFIG),
        (sold(status="FULL"), "is free", ErrorKind.CAPACITY),
    ],
)
def test_an_unorderable_product_is_an_error_of_its_offer(
    product: SupportedProduct, words: str, kind: ErrorKind
) -> None:
    error = refused(order(type="p"), product)
    assert words in str(error)
    assert (error.kind, error.scope) == (kind, Scope.OFFER)


def test_a_name_that_means_two_products_is_refused() -> None:
    assert "several products" in str(refused(order(type="p"), sold(), sold(category="d")))
