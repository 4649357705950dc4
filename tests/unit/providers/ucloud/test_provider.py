"""What goes wrong at UCloud, and that nothing is concluded, lost or bought twice by it."""

from collections.abc import Callable

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
from providers.ucloud.errors import SETTLE_SECONDS
from providers.ucloud.provider import UCloudProvider
from tests.fakes.ucloud.auth import CACHE_SECONDS
from tests.fakes.ucloud.control import Remote
from tests.fakes.ucloud.lab import CPU, GPU, Lab, order, phase

LATE = SETTLE_SECONDS


def refusal(call: Callable[[], object]) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        call()
    return caught.value


def started(remote: Remote, operation: str = "op1") -> int:
    """How many machines of an operation ever came to be."""
    return len(remote.truth()["started"].get(operation, []))


def submissions(remote: Remote) -> int:
    return remote.calls("submit")


# -- an order whose outcome is unknown --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["close", "half", "html"])
def test_an_answer_that_is_lost_is_found_by_its_operation(
    account: Lab, remote: Remote, provider: UCloudProvider, mode: str
) -> None:
    remote.fault("lost_response", "submit", mode=mode)
    error = refusal(lambda: provider.create(order()))
    assert error.applied is Applied.MAYBE
    assert error.retry_after == SETTLE_SECONDS
    again = provider.create(order())
    assert again.adopted
    assert submissions(remote) == 1
    account.settle(lambda: phase(provider, again.id) is Phase.RUNNING)
    assert started(remote) == 1


def test_a_request_that_is_lost_looks_the_same_and_is_ordered_again(remote: Remote, provider: UCloudProvider) -> None:
    remote.fault("lost_request", "submit")
    error = refusal(lambda: provider.create(order()))
    assert (error.kind, error.applied) == (ErrorKind.TRANSIENT, Applied.MAYBE)
    remote.advance(LATE)
    assert not provider.create(order()).adopted
    assert len(provider.list().instances) == 1


def test_an_effect_that_comes_late_is_seen_within_the_time_to_settle(remote: Remote, provider: UCloudProvider) -> None:
    remote.fault("late_effect", "submit", seconds=60.0)
    assert refusal(lambda: provider.create(order())).applied is Applied.MAYBE
    assert provider.list().instances == ()
    remote.advance(LATE)
    assert provider.create(order()).adopted


@pytest.mark.parametrize("orphan", [False, True])
def test_a_job_that_was_seen_once_can_vanish_again(remote: Remote, provider: UCloudProvider, orphan: bool) -> None:
    remote.fault("provider_timeout", "submit", orphan=orphan)
    error = refusal(lambda: provider.create(order()))
    assert (error.kind, error.applied) == (ErrorKind.TRANSIENT, Applied.MAYBE)
    assert [seen.phase for seen in provider.list().instances] == [Phase.BOOTING]
    remote.advance(LATE)
    assert provider.list().instances == ()
    remote.advance(600)
    truth = remote.truth()
    assert truth["started"] == {}
    assert truth["orphans"] == ({"op1": 1} if orphan else {})
    assert {machine["phase"] for machine in truth["machines"].values()} <= {"ended"}


def test_an_operation_that_has_ended_is_not_ordered_again(
    account: Lab, remote: Remote, provider: UCloudProvider
) -> None:
    made = account.run(provider)
    provider.delete(Ref(id=made.id))
    account.settle(lambda: phase(provider, made.id) is Phase.GONE)
    again = provider.create(order())
    assert (again.id, again.phase, again.adopted) == (made.id, Phase.GONE, True)
    assert submissions(remote) == 1


def test_of_two_jobs_of_one_operation_the_oldest_is_kept_and_a_name_ends_both(
    account: Lab, remote: Remote, provider: UCloudProvider
) -> None:
    remote.fault("late_effect", "submit", seconds=30.0)
    refusal(lambda: provider.create(order()))
    second = provider.create(order())  # far too early
    remote.advance(60)
    both = sorted(seen.id for seen in provider.list().instances)
    assert len(both) == 2
    assert provider.create(order()).id == min(both) == second.id
    assert provider.delete(Ref(name=second.name)) is Deleted.ACCEPTED
    account.settle(lambda: all(phase(provider, each) is Phase.GONE for each in both))
    assert provider.delete(Ref(name=second.name)) is Deleted.GONE


@pytest.mark.parametrize("fault", ["garbage", "rate_limit"])
def test_what_cannot_be_understood_is_uncertain(remote: Remote, provider: UCloudProvider, fault: str) -> None:
    remote.fault(fault, "submit")
    assert refusal(lambda: provider.create(order())).applied is Applied.MAYBE


def test_a_look_that_fails_orders_nothing(remote: Remote, provider: UCloudProvider) -> None:
    remote.fault("gateway", "browse", status=502)
    assert refusal(lambda: provider.create(order())).applied is Applied.NO
    assert submissions(remote) == 0


# -- credentials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["browse", "products", "submit", "terminate"])
def test_a_token_that_expires_in_any_call_costs_one_refresh(account: Lab, remote: Remote, call: str) -> None:
    provider = account.provider(refresh_token_env="REFRESH")
    remote.fault("expired", call)
    made = provider.create(order())
    assert provider.delete(Ref(id=made.id)) is Deleted.ACCEPTED
    truth = remote.truth()
    assert truth["refreshes"] == 2
    accepted = [row for row in remote.audit() if row["verdict"] == "accepted"]
    assert [row["call"] for row in accepted] == ["submit", "terminate"]


@pytest.mark.parametrize("end", ["kill_refresh", "remove_member"])
def test_a_dead_credential_is_never_an_empty_listing(account: Lab, remote: Remote, end: str) -> None:
    provider = account.provider(refresh_token_env="REFRESH")
    made = provider.create(order())
    remote.ask("credentials", do=end)
    remote.ask("credentials", do="expire")
    calls: list[Callable[[], object]] = [
        provider.list,
        provider.offers,
        lambda: provider.get(Ref(id=made.id)),
        lambda: provider.create(order(2)),
        lambda: provider.delete(Ref(id=made.id)),
    ]
    for call in calls:
        error = refusal(call)
        assert (error.kind, error.applied, error.scope) == (ErrorKind.AUTH, Applied.NO, Scope.PROVIDER)


@pytest.mark.parametrize("end", ["revoke", "remove_member"])
def test_a_revoked_api_token_works_for_a_minute_and_is_then_an_auth_error(
    remote: Remote, provider: UCloudProvider, end: str
) -> None:
    made = provider.create(order())
    remote.ask("credentials", do=end)
    remote.advance(CACHE_SECONDS - 1)
    assert [seen.id for seen in provider.list().instances] == [made.id]
    remote.advance(2)
    for call in (provider.list, lambda: provider.create(order(2)), lambda: provider.delete(Ref(id=made.id))):
        error = refusal(call)
        assert (error.kind, error.applied, error.scope) == (ErrorKind.AUTH, Applied.NO, Scope.PROVIDER)


def test_a_token_of_another_project_is_named(account: Lab) -> None:
    account.provider().create(order())
    wrong = account.provider(project="00000000-0000-4000-8000-000000000000")
    for call in (wrong.list, lambda: wrong.get(Ref(name=order().name))):
        error = refusal(call)
        assert (error.kind, error.scope) == (ErrorKind.CONFIG, Scope.PROVIDER)
        assert "the token is for another one" in str(error)


# -- money and room ---------------------------------------------------------------------------------------------------


def test_a_missing_allocation_is_a_config_error(remote: Remote, provider: UCloudProvider) -> None:
    remote.ask("wallet", category="cpu-amd-zen5", allocated=False)
    error = refusal(lambda: provider.create(order()))
    assert (error.kind, error.applied, error.scope) == (ErrorKind.CONFIG, Applied.NO, Scope.PROVIDER)


def test_a_quota_that_is_reached_holds_creates_and_loses_machines(
    account: Lab, remote: Remote, provider: UCloudProvider
) -> None:
    made = account.run(provider)
    remote.ask("wallet", category="cpu-amd-zen5", quota=0)
    error = refusal(lambda: provider.create(order(2)))
    assert (error.kind, error.applied, error.scope) == (ErrorKind.QUOTA, Applied.NO, Scope.PROVIDER)
    assert error.code == "NOT_ENOUGH_COMPUTE_CREDITS"
    remote.advance(60)
    assert phase(provider, made.id) is Phase.LOST
    assert provider.delete(Ref(id=made.id)) is Deleted.ACCEPTED
    account.settle(lambda: phase(provider, made.id) is Phase.GONE)


def test_a_lack_of_capacity_shows_in_the_offers(account: Lab, remote: Remote, provider: UCloudProvider) -> None:
    provider.offers()  # UCloud's hint is ten seconds old: the order below is still let through
    remote.ask("capacity", **{"cpu-amd-zen5": 0})
    waits = provider.create(order())
    remote.advance(30)
    offers = {offer.type: offer.available for offer in provider.offers()}
    assert offers[CPU] is False
    assert offers["cpu-old-4-vcpu"] is True
    error = refusal(lambda: provider.create(order(2)))
    assert (error.kind, error.applied, error.scope) == (ErrorKind.CAPACITY, Applied.NO, Scope.OFFER)
    remote.advance(86_400)
    (seen,) = provider.list().instances
    assert seen.phase is Phase.BOOTING
    assert "no machines available" in seen.detail
    assert seen.progress_at is None
    other = account.run(provider, 3, type="cpu-old-4-vcpu")
    assert other.type == "cpu-old-4-vcpu"
    provider.delete(Ref(id=waits.id))
    remote.ask("capacity", **{"cpu-amd-zen5": 8})
    remote.advance(600)
    assert phase(provider, waits.id) is Phase.GONE
    assert started(remote) == 0


def test_gpu_products_need_support_and_allow_gpu(account: Lab, remote: Remote) -> None:
    assert not any(offer.resources.gpus for offer in account.provider(allow_gpu=True).offers())
    remote.ask("product", name=GPU, vm=True)
    plain, probed = account.provider(), account.provider(allow_gpu=True)
    assert (plain.caps.has_gpu, probed.caps.has_gpu, UCloudProvider.caps.has_gpu) == (False, True, False)
    error = refusal(lambda: plain.create(order(type=GPU)))
    assert (error.kind, error.scope) == (ErrorKind.CONFIG, Scope.OFFER)
    assert probed.create(order(type=GPU)).type == GPU


# -- boots that go wrong ----------------------------------------------------------------------------------------------


def test_a_first_boot_passes_through_suspended(account: Lab, remote: Remote, provider: UCloudProvider) -> None:
    made = provider.create(order())
    seen: set[tuple[str, Phase | None]] = set()

    def is_running() -> bool:
        seen.add((remote.state(made.id), phase(provider, made.id)))
        return remote.state(made.id) == "RUNNING"

    for _ in range(2000):
        if is_running():
            break
        remote.advance(0.5)
    assert seen == {
        ("IN_QUEUE", Phase.BOOTING),
        ("SUSPENDED", Phase.BOOTING),
        ("RUNNING", Phase.RUNNING),
    }


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_start_that_fails_boots_for_ever(account: Lab, remote: Remote, provider: UCloudProvider, where: str) -> None:
    remote.fault("start", where=where)
    made = provider.create(order())
    remote.advance(86_400)
    (seen,) = provider.list().instances
    assert seen.phase is Phase.BOOTING
    assert ("Failed to schedule job" in seen.detail) is (where == "before")
    assert (seen.progress_at is None) is (where == "before")
    provider.delete(Ref(id=made.id))
    account.settle(lambda: phase(provider, made.id) is Phase.GONE)


def test_a_stuck_job_may_start_late_and_is_still_found_and_ended(
    account: Lab, remote: Remote, provider: UCloudProvider
) -> None:
    remote.fault("start", where="before")
    made = provider.create(order())
    remote.advance(3600)
    remote.ask("restart_provider")
    account.settle(lambda: phase(provider, made.id) is Phase.RUNNING)
    assert provider.delete(Ref(id=made.id)) is Deleted.ACCEPTED
    account.settle(lambda: phase(provider, made.id) is Phase.GONE)
    assert started(remote) == 1


def test_a_machine_that_vanishes_is_lost_and_then_gone(account: Lab, remote: Remote, provider: UCloudProvider) -> None:
    made = account.run(provider)
    remote.ask("job", do="vanish", id=made.id)
    remote.advance(10)
    assert phase(provider, made.id) is Phase.LOST
    remote.advance(300)
    assert phase(provider, made.id) is Phase.GONE


@pytest.mark.parametrize("state", ["FAILURE", "EXPIRED"])
def test_an_unexpected_end_is_gone(account: Lab, remote: Remote, provider: UCloudProvider, state: str) -> None:
    made = account.run(provider)
    remote.ask("job", do="state", id=made.id, state=state)
    assert phase(provider, made.id) is Phase.GONE


def test_an_unknown_state_changes_nothing(account: Lab, remote: Remote, provider: UCloudProvider) -> None:
    made = account.run(provider)
    remote.ask("job", do="state", id=made.id, state="CANCELING")
    assert phase(provider, made.id) is Phase.RUNNING


def test_a_port_is_assigned_at_the_start_and_another_after_a_suspend(
    account: Lab, remote: Remote, provider: UCloudProvider
) -> None:
    made = provider.create(order())
    assert provider.connect(made) is None
    account.settle(lambda: phase(provider, made.id) is Phase.RUNNING)
    first = provider.connect(made)
    assert first is not None
    assert (first.host, first.user) == ("ssh.example.net", "ucloud")
    remote.ask("job", do="suspend", id=made.id)
    remote.advance(10)
    assert provider.connect(made) is None
    remote.ask("job", do="unsuspend", id=made.id)
    account.settle(lambda: phase(provider, made.id) is Phase.RUNNING)
    second = provider.connect(made)
    assert second is not None
    assert second.port != first.port


# -- listings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["repeat_cursor", "twice", "repeat_page"])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_inconsistent_pages_are_no_listing(
    account: Lab, remote: Remote, provider: UCloudProvider, mode: str, skip: int
) -> None:
    for number in range(10):
        provider.create(order(number))
    remote.fault("pages", "browse", times=None, mode=mode, skip=skip)
    error = refusal(provider.list)
    assert (error.kind, error.applied) == (ErrorKind.BUG, Applied.NO)
    remote.ask("heal")
    assert len(provider.list().instances) == 10


def test_a_job_that_no_page_has_is_missing_once_and_not_gone(remote: Remote, provider: UCloudProvider) -> None:
    """Nothing shows that it is missing: this is why absence takes two listings, and `get`."""
    ids = {provider.create(order(number)).id for number in range(3)}
    remote.fault("pages", "browse", mode="skip")
    seen = {instance.id for instance in provider.list().instances}
    (missing,) = ids - seen
    assert provider.get(Ref(id=missing)) is not None
    assert {instance.id for instance in provider.list().instances} == ids


@pytest.mark.parametrize("fault", ["gateway", "lost_request", "lost_response", "garbage", "rate_limit"])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_page_that_is_missing_is_no_listing(
    account: Lab, remote: Remote, provider: UCloudProvider, fault: str, skip: int
) -> None:
    for number in range(10):
        provider.create(order(number))
    remote.fault(fault, "browse", skip=skip)
    assert refusal(provider.list).applied is Applied.NO
    assert len(provider.list().instances) == 10


def test_new_jobs_between_pages_shift_nothing(account: Lab, remote: Remote) -> None:
    provider = account.provider(page_size=3)
    mine = {provider.create(order(number)).id for number in range(9)}
    assert {seen.id for seen in provider.list().instances} == mine


def test_ended_jobs_stay_listed_as_gone(account: Lab, remote: Remote, provider: UCloudProvider) -> None:
    remote.ask("history", count=30, labels={DEPLOYMENT_LABEL: "fleet"})
    made = provider.create(order())
    seen = provider.list().instances
    assert len(seen) == 31
    assert [each.id for each in seen if each.phase is not Phase.GONE] == [made.id]


# -- foreign hands ----------------------------------------------------------------------------------------------------


def test_a_foreign_job_is_neither_seen_nor_ended(account: Lab, remote: Remote, provider: UCloudProvider) -> None:
    foreign = remote.ask("job", do="foreign", labels={OPERATION_LABEL: "op1"})["id"]
    assert provider.list().instances == ()
    assert provider.get(Ref(id=foreign)) is None
    assert provider.delete(Ref(id=foreign)) is Deleted.GONE
    assert not provider.create(order()).adopted
    assert remote.state(foreign) == "RUNNING"
    assert remote.calls("terminate") == 0


def test_a_renamed_job_keeps_its_name_here(account: Lab, remote: Remote, provider: UCloudProvider) -> None:
    made = provider.create(order())
    remote.ask("job", do="rename", id=made.id, name="mine now")
    found = provider.get(Ref(name=made.name))
    assert found is not None
    assert (found.id, found.name) == (made.id, made.name)


def test_a_machine_that_somebody_ended_is_gone(account: Lab, remote: Remote, provider: UCloudProvider) -> None:
    made = account.run(provider)
    remote.ask("job", do="terminate", id=made.id)
    account.settle(lambda: phase(provider, made.id) is Phase.GONE)


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [502, 400])
@pytest.mark.parametrize("effect", [True, False])
def test_gone_is_read_from_the_state_and_not_from_the_answer(
    account: Lab, remote: Remote, provider: UCloudProvider, status: int, effect: bool
) -> None:
    made = account.run(provider)
    remote.fault("terminate_uncertain", "terminate", status=status, effect=effect)
    error = refusal(lambda: provider.delete(Ref(id=made.id)))
    assert (error.kind, error.applied) == (ErrorKind.TRANSIENT, Applied.MAYBE)
    remote.advance(10)
    assert phase(provider, made.id) is (Phase.GONE if effect else Phase.RUNNING)
    assert provider.delete(Ref(id=made.id)) is (Deleted.GONE if effect else Deleted.ACCEPTED)


def test_stopping_ends_when_the_job_does_not(account: Lab, remote: Remote) -> None:
    now = [0.0]
    provider = account.provider()
    provider._clock = lambda: now[0]
    made = account.run(provider)
    provider.delete(Ref(id=made.id))
    assert phase(provider, made.id) is Phase.STOPPING
    now[0] = 61.0
    assert phase(provider, made.id) is Phase.RUNNING


@pytest.mark.parametrize("fault", ["maintenance", "provider_down"])
def test_a_provider_that_is_away_can_still_be_listed(
    account: Lab, remote: Remote, provider: UCloudProvider, fault: str
) -> None:
    made = provider.create(order())
    remote.fault(fault, times=None)
    kind, applied = (ErrorKind.BUSY, Applied.NO) if fault == "maintenance" else (ErrorKind.TRANSIENT, Applied.MAYBE)
    for call in (lambda: provider.create(order(2)), lambda: provider.delete(Ref(id=made.id))):
        error = refusal(call)
        assert (error.kind, error.applied, error.scope) == (kind, applied, Scope.PROVIDER)
    assert [seen.id for seen in provider.list().instances] == [made.id]
