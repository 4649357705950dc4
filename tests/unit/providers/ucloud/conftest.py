"""One emulated account for each test."""

from collections.abc import Iterator

import pytest

from providers.ucloud.provider import UCloudProvider
from tests.fakes.ucloud.control import Remote
from tests.fakes.ucloud.lab import Lab, lab


@pytest.fixture
def account() -> Iterator[Lab]:
    with lab() as made:
        yield made


@pytest.fixture
def remote(account: Lab) -> Remote:
    return account.remote


@pytest.fixture
def provider(account: Lab) -> UCloudProvider:
    return account.provider()
