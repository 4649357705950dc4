"""Whatever goes wrong, one operation makes one server at most, and no error says more than is true."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from providers.base import Applied, Create, Deleted, ErrorKind, Instance, ProviderError, Ref
from tests.fakes.hetzner.emulator import emulator
from tests.unit.providers.hetzner.lab import Lab, order

REFUSALS = [
    (403, "resource_limit_exceeded"),
    (409, "conflict"),
    (412, "resource_unavailable"),
    (422, "invalid_input"),
    (423, "locked"),
    (429, "rate_limit_exceeded"),
    (401, "unauthorized"),
]
BREAKS = [(500, "server_error"), (502, "bad_gateway"), (503, "unavailable"), (504, "timeout")]

refused = st.sampled_from(REFUSALS).map(lambda it: {"do": "error", "status": it[0], "code": it[1]})
broken = st.builds(
    lambda it, apply: {"do": "error", "status": it[0], "code": it[1], "apply": apply},
    st.sampled_from(BREAKS),
    st.booleans(),
)
page = st.builds(
    lambda status, apply: {"do": "html", "status": status, "apply": apply},
    st.sampled_from([200, 502, 503]),
    st.booleans(),
)
cut = st.sampled_from([{"do": "lost"}, {"do": "drop"}, {"do": "garbage"}])
fault = st.one_of(refused, broken, page, cut)
step = st.fixed_dictionaries(
    {
        "post": st.none() | fault,
        "look": st.none() | fault,
        "wait": st.sampled_from([0, 5, 30]),
        "restart": st.booleans(),
    }
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with emulator() as cloud:
        yield Lab(cloud)


numbers = iter(range(10**9))


def tried(lab: Lab, provider: Any, want: Create, plan: dict[str, Any]) -> Instance | ProviderError:
    """Try once, and check that the outcome is true."""
    lab.cloud.calm()
    if plan["post"] is not None:
        lab.cloud.fault(on="POST /servers", **plan["post"])
    if plan["look"] is not None:
        lab.cloud.fault(on="GET /servers", **plan["look"])
    before = len(lab.cloud.made(want.operation_id))
    try:
        outcome: Instance | ProviderError = provider.create(want)
    except ProviderError as error:
        outcome = error
    after = len(lab.cloud.made(want.operation_id))
    if isinstance(outcome, ProviderError):
        assert outcome.applied is not Applied.NO or after == before, "it said that it had no effect"
        assert outcome.kind is not ErrorKind.EXISTS, "its own server was taken for somebody else's"
    else:
        assert after == 1
        assert outcome.adopted is (before == 1)
    return outcome


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(step, max_size=6))
def test_one_operation_never_makes_two_servers(lab: Lab, steps: list[dict[str, Any]]) -> None:
    want = order(f"r{next(numbers)}")
    provider = lab.provider()
    for plan in steps:
        tried(lab, provider, want, plan)
        lab.advance(601 + plan["wait"])  # the budget of calls comes back, too
        if plan["restart"]:
            provider = lab.provider()
    last = tried(lab, provider, want, {"post": None, "look": None})
    assert isinstance(last, Instance)
    (server,) = lab.cloud.made(want.operation_id)
    assert str(server["id"]) == last.id
    assert lab.provider().delete(Ref(name=want.name)) in set(Deleted)
    lab.advance(60)
    assert lab.provider().get(Ref(name=want.name)) is None
