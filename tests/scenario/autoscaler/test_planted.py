"""The worlds find bugs: each of these is planted, and one of a few worlds has to notice it."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from autoscaler.core import limits, naming, settle, stopping
from autoscaler.core.model import FleetPolicy, Intent, Node, Stop, World
from autoscaler.creating import Creator
from autoscaler.execute import Executor
from providers.base import Applied
from providers.testing.fake import FakeProvider
from tests.scenario.autoscaler.worlds import Mutation, Violation, invented, play

Patch = Callable[[pytest.MonkeyPatch], None]
WORLDS = 120
SHORT = 300
LATE = {
    "the cap of a pool in euro is ignored": 53,
    "the cap of the fleet in euro is ignored": 53,
    "a closed node is deleted without proof": 15,
}
"""Worlds before these were seen to miss a bug, and are left out to save time."""
SLOW = {
    "a closed node is deleted without proof",
    "what is on its way does not count",
    "a node that is silent for a moment is deleted",
}


def pools(**changes: object) -> Mutation:
    return lambda policy: replace(policy, pools=tuple(replace(each, **changes) for each in policy.pools))  # type: ignore[arg-type]


def one_more(policy: FleetPolicy) -> FleetPolicy:
    return replace(policy, pools=tuple(replace(each, max=each.max + 1) for each in policy.pools))


POLICIES: dict[str, Mutation] = {
    "the maximum of a pool is one too high": one_more,
    "the maximum of the fleet is ignored": lambda policy: replace(policy, max=None),
    "the cap of a pool in euro is ignored": pools(max_hourly=None),
    "the cap of the fleet in euro is ignored": lambda policy: replace(policy, max_hourly=Decimal(10)),
    "orphans are deleted young": lambda policy: replace(policy, orphan_seconds=0.0),
    "boots get half their time": pools(start_seconds=30.0, boot_seconds=20.0),
    "an idle node is never closed": pools(idle_seconds=1e9),
}


def without_proof(patch: pytest.MonkeyPatch) -> None:
    def drained(intent: Intent, _node: Node) -> Stop:
        return Stop(intent.operation_id, "it was closed")

    patch.setattr(stopping, "_drained", drained)


def never_looks_again(patch: pytest.MonkeyPatch) -> None:
    without_proof(patch)
    patch.setattr(Executor, "_is_still_drained", lambda _self, _intent: True)


def one_listing_is_enough(patch: pytest.MonkeyPatch) -> None:
    """And a listing that failed is taken for an empty one."""
    real = settle.settle

    def settled(world: World, policy: FleetPolicy, now: float) -> object:
        views = {
            name: replace(view, instances=()) if view.instances is None else view
            for name, view in world.providers.items()
        }
        missing = frozenset(intent.sighting for intent in world.intents)
        return real(replace(world, providers=views, missing_before=missing), policy, now)

    patch.setattr("autoscaler.reconcile.settle", settled)


def planned_rows_do_not_count(patch: pytest.MonkeyPatch) -> None:
    real = limits._pool_refusal

    def refusal(draft: object, pool: object) -> str | None:
        found = real(draft, pool)  # type: ignore[arg-type]
        return None if found is not None and found.startswith(("it has", "the fleet has")) else found

    patch.setattr(limits, "_pool_refusal", refusal)


def a_new_name_at_every_try(patch: pytest.MonkeyPatch) -> None:
    tries = iter(range(10**6))
    real = FakeProvider._create

    def create(self: FakeProvider, want: object) -> object:
        return real(self, replace(want, name=f"{want.name}-{next(tries)}"))  # type: ignore[attr-defined,type-var]

    patch.setattr(FakeProvider, "_create", create)


def labels_are_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(naming, "operation_of", lambda _instance: None)


def refused_is_taken_for_unknown_never(patch: pytest.MonkeyPatch) -> None:
    """A create whose outcome is unknown is closed as if nothing had been made."""
    real = Creator._refused

    def refused(self: Creator, intent: Intent, error: object) -> object:
        error.applied = Applied.NO  # type: ignore[attr-defined]
        return real(self, replace(intent, attempts=1), error)  # type: ignore[arg-type]

    patch.setattr(Creator, "_refused", refused)


def a_silent_node_is_deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stopping, "_silent", lambda intent, *_rest: Stop(intent.operation_id, "it is silent"))
    patch.setattr(
        stopping,
        "_stop",
        lambda intent, node, *_rest: (
            Stop(intent.operation_id, "it is silent")
            if node is not None and node.state in ("unreachable", "lost") and intent.node_id
            else None
        ),
    )


def demand_is_never_met(patch: pytest.MonkeyPatch) -> None:
    """What is on its way does not count, so that a minimum is booted again and again."""
    patch.setattr("autoscaler.core.draft.KEPT", frozenset())


PATCHES: dict[str, Patch] = {
    "a closed node is deleted without proof": never_looks_again,
    "absence is concluded from a failed listing": one_listing_is_enough,
    "only what is called counts against the maximum": planned_rows_do_not_count,
    "every try gets a new name": a_new_name_at_every_try,
    "labels are not read back": labels_are_left_out,
    "an unknown outcome is taken for a refusal": refused_is_taken_for_unknown_never,
    "a node that is silent for a moment is deleted": a_silent_node_is_deleted_at_once,
    "what is on its way does not count": demand_is_never_met,
}


def found(directory: Path, name: str, mutate: Mutation = lambda policy: policy) -> str | None:
    """What the first world that notices says; nothing when none does."""
    for seed in range(LATE.get(name, 0), WORLDS):
        try:
            play(directory, invented(seed), mutate, patience=SHORT)
        except Violation as violation:
            return str(violation)
        except AssertionError:
            # It may only have needed longer; a wrong one never comes to rest.
            try:
                play(directory, invented(seed), mutate)
            except (AssertionError, Violation) as error:
                return str(error)
    return None


@pytest.mark.parametrize("name", POLICIES)
def test_a_wrong_rule_is_found(tmp_path: Path, name: str) -> None:
    assert found(tmp_path, name, POLICIES[name]), name


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.soak) if n in SLOW else n for n in PATCHES])
def test_wrong_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    PATCHES[name](monkeypatch)
    assert found(tmp_path, name), name
