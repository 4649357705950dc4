"""A failure is told, whatever is collected meanwhile."""

import gc

import pytest

from tests.conftest import pytest_runtest_makereport


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_a_failure_is_put_into_words(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        telling = pytest_runtest_makereport()
        next(telling)
        assert not gc.isenabled()
        telling.close()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
