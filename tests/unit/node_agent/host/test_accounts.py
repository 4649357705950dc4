"""Users and groups by the files of an image."""

from pathlib import Path

import pytest

from node_agent.host.accounts import Account, UnknownAccountError, look_up

PASSWD = "root:x:0:0:root:/root:/bin/sh\n# a comment\nbroken\nalice:x:1234:2345:Alice:/home/alice:/bin/sh\n"
GROUP = "root:x:0:\nusers:x:100:bob,alice\nstaff:x:50:alice\nalice:x:2345:alice\n"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/group").write_text(GROUP)
    return tmp_path


@pytest.mark.parametrize(
    ("user", "account"),
    [
        ("", Account(0, 0, (), "root", "/root")),
        ("root", Account(0, 0, (), "root", "/root")),
        ("alice", Account(1234, 2345, (50, 100), "alice", "/home/alice")),
        ("1234", Account(1234, 2345, (50, 100), "alice", "/home/alice")),
        ("alice:staff", Account(1234, 50, (), "alice", "/home/alice")),
        ("alice:77", Account(1234, 77, (), "alice", "/home/alice")),
        ("1000:1000", Account(1000, 1000)),
        ("1000", Account(1000, 0)),
        ("1000:users", Account(1000, 100)),
    ],
)
def test_account(image: Path, user: str, account: Account) -> None:
    assert look_up(image, user) == account


@pytest.mark.parametrize("user", ["mallory", "alice:nobody", "99999999999", "alice:99999999999"])
def test_unknown_account_is_named(image: Path, user: str) -> None:
    with pytest.raises(UnknownAccountError, match=user.rpartition(":")[2]):
        look_up(image, user)


@pytest.mark.parametrize("user", ["1000", "1000:1000", "5:1000"])
def test_a_number_is_never_the_name_of_another(image: Path, user: str) -> None:
    (image / "etc/passwd").write_text(PASSWD + "1000:x:0:0:root again:/root:/bin/sh\n")
    (image / "etc/group").write_text(GROUP + "1000:x:0:\n")

    with pytest.raises(UnknownAccountError, match="1000 is a number, and also a name"):
        look_up(image, user)


def test_a_number_may_be_its_own_name(image: Path) -> None:
    (image / "etc/passwd").write_text(PASSWD + "1000:x:1000:100::/home:/bin/sh\n")

    assert look_up(image, "1000") == Account(1000, 100, (), "1000", "/home")


def test_image_without_files_knows_numbers_only(tmp_path: Path) -> None:
    assert look_up(tmp_path, "5:6") == Account(5, 6)
    with pytest.raises(UnknownAccountError):
        look_up(tmp_path, "root")


def test_link_out_of_the_image_is_not_followed(image: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "passwd"
    outside.write_text("mallory:x:6666:6666::/:/bin/sh\n")
    (image / "etc/passwd").unlink()
    (image / "etc/passwd").symlink_to(outside)

    with pytest.raises(UnknownAccountError):
        look_up(image, "mallory")


def test_link_inside_the_image_is_followed_from_its_root(image: Path) -> None:
    (image / "etc/passwd").rename(image / "users")
    (image / "etc/passwd").symlink_to("/users")

    assert look_up(image, "alice").uid == 1234
