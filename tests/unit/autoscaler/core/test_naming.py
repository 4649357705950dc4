"""Names and labels of instances."""

import re

from autoscaler.core import naming


def test_the_longest_name_fits_every_cloud() -> None:
    longest = "a" * 24
    assert re.match(naming.NAME_PATTERN, longest)
    assert len(naming.instance_name(longest, longest, "x" * naming.OPERATION_LENGTH)) <= 63
