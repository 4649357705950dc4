"""Lets the shipped suite show what it compared when a test fails."""

import pytest

pytest.register_assert_rewrite("providers.testing")
