"""Whether a node has room for one more sandbox."""

from gateway.wire.resources import Shape
from node_agent.sandboxes.manager import shortfall

NODE = Shape(cpus=4, memory_mb=1000, disk_mb=1000, slots=2)


SMALL = Shape(cpus=1, memory_mb=400, disk_mb=100, slots=1)


def test_what_fits_is_not_short() -> None:
    assert shortfall(NODE, SMALL) is None


def test_what_does_not_fit_is_named() -> None:
    assert shortfall(NODE.minus(SMALL + SMALL), SMALL) == (
        "this node has no room: memory_mb 400 of 200 free, slots 1 of 0 free"
    )


def test_large_numbers_are_written_out() -> None:
    wanted = Shape(cpus=0.1 + 0.2, memory_mb=10_000_000, disk_mb=1, slots=1)
    assert shortfall(Shape(cpus=0.25, memory_mb=9_999_999, disk_mb=1, slots=1), wanted) == (
        "this node has no room: cpus 0.3 of 0.25 free, memory_mb 10000000 of 9999999 free"
    )
