"""Bounds that follow from the limits of the machine."""

import pytest

from gateway.http.app import MAX_REQUESTS
from gateway.main import most_requests


@pytest.mark.parametrize(
    ("files", "requests"), [(1024, 256), (4096, 1792), (10**6, MAX_REQUESTS), (600, 44), (100, 1), (0, 1)]
)
def test_requests_never_need_more_descriptors_than_there_are(files: int, requests: int) -> None:
    assert most_requests(files) == requests
