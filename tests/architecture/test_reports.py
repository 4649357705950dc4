"""The report of a failed test is written with garbage collection off."""

import gc

import pytest

from tests.conftest import pytest_runtest_makereport


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_a_failure_is_reported(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        report = pytest_runtest_makereport()
        next(report)
        assert not gc.isenabled()
        report.close()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
