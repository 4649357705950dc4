"""The life of one intent, as a table.

An intent is one instance that was asked for, from the row that says so until the provider has proved that it is gone.
Whatever is not ``gone`` counts against every limit.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class IntentState(StrEnum):
    """Where an intent stands."""

    PLANNED = "planned"  # written down, nothing called yet
    CALLING = "calling"  # a create was or may have been sent; only the provider knows what came of it
    BOOTING = "booting"  # the provider has an instance
    READY = "ready"  # its node has registered
    DRAINING = "draining"  # its node is to take nothing new, so that it can be deleted
    ABANDONED = "abandoned"  # past its deadline without an instance: never called again, deleted if it turns up
    LOST = "lost"  # the instance or its node is gone without having been asked to
    DELETING = "deleting"  # a delete was or may have been sent
    GONE = "gone"  # proved absent


S = IntentState

TRANSITIONS: Final[Mapping[IntentState, frozenset[IntentState]]] = {
    S.PLANNED: frozenset({S.CALLING, S.GONE}),
    # Straight to gone when the provider refused: nothing was made.
    S.CALLING: frozenset({S.BOOTING, S.ABANDONED, S.GONE}),
    S.BOOTING: frozenset({S.READY, S.LOST, S.DELETING}),
    S.READY: frozenset({S.DRAINING, S.LOST, S.DELETING}),
    S.DRAINING: frozenset({S.READY, S.LOST, S.DELETING}),
    S.ABANDONED: frozenset({S.DELETING}),
    S.LOST: frozenset({S.DELETING}),
    S.DELETING: frozenset({S.GONE}),
    S.GONE: frozenset(),
}

TEARDOWN: Final[Mapping[IntentState, tuple[IntentState, ...]]] = {
    S.PLANNED: (S.GONE,),
    S.CALLING: (S.ABANDONED, S.DELETING),
    S.BOOTING: (S.DELETING,),
    S.READY: (S.DELETING,),
    S.DRAINING: (S.DELETING,),
    S.ABANDONED: (S.DELETING,),
    S.LOST: (S.DELETING,),
    S.DELETING: (),
    S.GONE: (),
}
"""The steps from each state until a delete may be sent, when the whole fleet is torn down."""

STARTING: Final = frozenset({S.PLANNED, S.CALLING, S.BOOTING})
"""Not yet a node."""
WITH_NODE: Final = frozenset({S.READY, S.DRAINING})
"""Its node has registered, and is meant to be there."""
WITH_INSTANCE: Final = WITH_NODE | {S.BOOTING}
"""Its instance is meant to be listed."""
KEPT: Final = STARTING | {S.READY}
"""Meant to go on: what a pool's minimum counts."""


class IntentTransitionError(Exception):
    """A change of state that the table does not hold: a bug in the caller."""


def next_state(current: IntentState, wanted: IntentState) -> IntentState:
    """Return ``wanted`` if the table allows it after ``current``.

    Raises:
        IntentTransitionError: The table does not hold that change.
    """
    if wanted not in TRANSITIONS[current]:
        raise IntentTransitionError(f"intent: {current} -> {wanted} is not in the table")
    return wanted
