"""Commands of this installation that run other commands of it."""

import pytest

from sandboxes.errors import CommandFailed
from sandboxes.local import itself


def test_the_output_of_a_command() -> None:
    assert itself.call("--version").startswith("sandboxes ")


def test_a_command_that_fails_is_named_with_its_last_words() -> None:
    with pytest.raises(CommandFailed, match=r"'sandboxes token revoke' failed with exit code \d+: "):
        itself.call("token", "revoke", "x", "--state-dir", "/proc/none")


def test_a_command_that_takes_too_long_is_killed() -> None:
    with pytest.raises(CommandFailed, match="'sandboxes --version' took over 0 s and was killed"):
        itself.call("--version", within=0.001)


def test_a_command_may_fail_where_that_is_expected() -> None:
    assert itself.call("token", "revoke", "x", "--state-dir", "/proc/none", may_fail=True) == ""
