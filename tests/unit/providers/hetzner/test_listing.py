"""Whole listings, whatever happens between two pages."""

from typing import Any

import pytest

from providers.base import DEPLOYMENT_LABEL, OPERATION_LABEL, Applied, ErrorKind, ProviderError
from tests.unit.providers.hetzner.lab import DEPLOYMENT, Lab, order

LABELS = {DEPLOYMENT_LABEL: DEPLOYMENT, OPERATION_LABEL: "x"}
MANY = 120


@pytest.fixture
def full(lab: Lab) -> Lab:
    """A project with three pages of servers."""
    provider = lab.provider()
    for number in range(MANY):
        provider.create(order(number))
    lab.advance(3600)
    return lab


def listed(lab: Lab) -> list[str]:
    return [instance.name for instance in lab.provider().list().instances]


def standing(lab: Lab) -> list[str]:
    return [server["name"] for server in lab.cloud.here()]


def pages_asked(lab: Lab, **fault: Any) -> int:
    """Pages that one listing of servers took."""
    before = lab.cloud.audit()["calls"]
    assert listed(lab) == standing(lab)
    return int(lab.cloud.audit()["calls"]) - before - 3  # the side resources


def test_all_pages_are_read_once(full: Lab) -> None:
    assert pages_asked(full) == 3


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("do", ["delete", "replace"])
def test_a_server_that_goes_between_pages_hides_no_other(full: Lab, do: str, page: int) -> None:
    """The first of the next page slips into this one; a new server keeps even the total as it was."""
    full.cloud.fault(do, "GET /servers", match={"page": page})
    assert listed(full) == standing(full)
    assert len(standing(full)) == MANY - (do == "delete")


def test_pages_that_come_twice_are_read_again(full: Lab) -> None:
    full.cloud.fault("page_again", "GET /servers", match={"page": 2})
    assert pages_asked(full) == 6


def test_without_totals_two_readings_must_agree(full: Lab) -> None:
    full.cloud.knobs(totals=False)
    assert pages_asked(full) == 6
    full.cloud.fault("delete", "GET /servers", match={"page": 1})
    assert pages_asked(full) == 9


def test_newborns_on_a_later_page_are_looked_at_twice(lab: Lab) -> None:
    for number in range(60):
        lab.provider().create(order(number))
    assert pages_asked(lab) == 4


@pytest.mark.parametrize("do", ["page_again", "replace", "delete"])
def test_a_listing_that_never_holds_still_is_none(full: Lab, do: str) -> None:
    full.cloud.fault(do, "GET /servers", times=None, match={"page": 2} if do == "page_again" else {"page": 1})
    with pytest.raises(ProviderError, match="changed") as caught:
        full.provider().list()
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.TRANSIENT, Applied.NO)


@pytest.mark.parametrize("page", [1, 2, 3])
@pytest.mark.parametrize("fault", [{"do": "drop"}, {"do": "html", "status": 200}, {"do": "garbage"}, {"do": "error"}])
def test_a_part_is_never_given(full: Lab, fault: dict[str, Any], page: int) -> None:
    full.cloud.fault(on="GET /servers", match={"page": page}, **fault)
    with pytest.raises(ProviderError):
        full.provider().list()


def test_a_repeated_page_in_one_is_not_counted_twice(lab: Lab) -> None:
    """Side resources and catalogue are read the same way."""
    for number in range(70):
        lab.cloud.add("volumes", name=f"v{number}", labels=LABELS)
    lab.advance(10)
    lab.cloud.fault("page_again", "GET /volumes", match={"page": 2})
    assert len(lab.provider().list().leftovers) == 70
