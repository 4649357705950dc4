"""The table of an intent's states."""

import pytest

from autoscaler.core import states
from autoscaler.core.states import IntentState, IntentTransitionError

S = IntentState


def test_the_table_knows_every_state_and_ends_in_gone_only() -> None:
    assert set(states.TRANSITIONS) == set(IntentState) == set(states.TEARDOWN)
    assert [state for state, after in states.TRANSITIONS.items() if not after] == [S.GONE]


@pytest.mark.parametrize("state", list(IntentState))
def test_teardown_goes_by_the_table_to_deleting_or_gone(state: IntentState) -> None:
    at = state
    for step in states.TEARDOWN[state]:
        at = states.next_state(at, step)
    assert at in (S.DELETING, S.GONE)


def test_a_transition_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(IntentTransitionError, match="abandoned -> calling"):
        states.next_state(S.ABANDONED, S.CALLING)
