"""What can happen in a world, as strategies; the simplest of each comes first, so that a world shrinks to its point."""

from itertools import chain

from hypothesis import strategies as st

from providers.base import Applied, ErrorKind
from tests.scenario.autoscaler.stage import CLOUDS, SETTLE, SHAPES
from tests.scenario.autoscaler.worlds import ODD, Happening

clouds = st.sampled_from(sorted(CLOUDS))
methods = st.sampled_from(("create", "delete", "list", "get", "offers"))
number = st.integers(0, 4)


def _of(kind: str, value: st.SearchStrategy[object]) -> st.SearchStrategy[Happening]:
    return st.tuples(st.just(kind), value)


wanted = (
    _of("wait", st.integers(1, 12)),
    _of("wait", st.integers(10, 40)),
    _of("ask", st.tuples(st.sampled_from(sorted(SHAPES)), st.integers(1, 25))),
    _of("ask", st.tuples(st.sampled_from(("small", "big")), st.integers(1, 25))),
    _of("prepare", st.tuples(st.sampled_from(sorted(SHAPES)), st.integers(1, 12), st.integers(10, 300))),
    _of("builders", st.integers(0, 2)),
    _of("finish", st.integers(0, 5)),
    _of("leave", st.none()),
    _of("late", st.integers(0, 2)),
    _of("late", st.integers(0, 2)),
)
own = (
    _of("crash", st.integers(0, 30)),
    _of("crash", st.integers(0, 30)),
    _of("disk", st.integers(1, 12)),
    _of("amnesia", st.none()),
    _of("second", st.none()),
    _of("skew", st.integers(-4000, 4000)),
)
calls = (
    _of("fault", st.tuples(clouds, methods, st.sampled_from(ErrorKind), st.sampled_from(Applied))),
    _of("fault", st.tuples(clouds, st.just("create"), st.just(ErrorKind.CAPACITY), st.just(Applied.NO))),
    _of("lose", st.tuples(clouds, methods)),
    _of("delay", st.integers(0, int(SETTLE))),
    _of("odd", st.tuples(clouds, methods, st.integers(0, len(ODD) - 1), st.booleans())),
    _of("hang", st.tuples(clouds, methods, st.integers(1, 10))),
    _of("down", st.tuples(clouds, st.integers(1, 60))),
    _of("dark", st.tuples(clouds, st.booleans())),
    _of("outage", st.booleans()),
)
machines = (
    _of("stuck", st.tuples(clouds, st.booleans())),
    _of("leaky", st.tuples(clouds, st.booleans())),
    _of("hide", number),
    _of("vanish", number),
    _of("break", number),
    _of("silence", number),
    _of("orphan", clouds),
    _of("return", number),
    _of("namesake", number),
)
happening = st.one_of(*wanted, *own, *calls, *machines)
worlds = st.lists(st.lists(happening, max_size=12), min_size=4, max_size=4).map(lambda parts: [*chain(*parts)])
"""Of several parts: one list would be short for the most part, and one that must be long would not shrink."""
