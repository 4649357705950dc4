"""The account that a process inside a sandbox runs as, by the image's own passwd and group files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.host.disk import read_below

_MAX_FILE: Final = 1024 * 1024
_MAX_ID: Final = 2**32 - 2  # the last one means "unchanged" to the kernel


class UnknownAccountError(Exception):
    """The image knows no such user or group."""


@dataclass(frozen=True)
class Account:
    """A user as the kernel sees it, and what its passwd entry says.

    Attributes:
        groups: supplementary groups.
        name, home: ``None`` where the image has no entry for it.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str | None = None
    home: str | None = None


def look_up(root: Path, user: str) -> Account:
    """Return the account for ``user[:group]``, each a name or a number; empty means root.

    A number needs no entry; without a group the entry's own counts (else 0), and then the supplementary groups of its
    name are added.  As with Docker, except that a number is never the name of another account: an image could call
    root ``1000``, and no policy on users would hold.

    Args:
        root: the root directory of the sandbox or image, as the host sees it.

    Raises:
        UnknownAccountError: a name that the image does not have, or a number that it gives to another as a name.
    """
    user_part, _, group_part = (user or "0").partition(":")
    entry = _find(_lines(root, "/etc/passwd", 7), user_part, 2)
    if entry is None and _id(user_part) is None:
        raise UnknownAccountError(
            f"user {user_part!r} is not in the image's /etc/passwd; use a number, or another image"
        )
    uid = _known(entry[2]) if entry else _known(user_part)
    name, home = (entry[0], entry[5] or None) if entry else (None, None)
    if group_part:
        return Account(uid, _group(root, group_part), (), name, home)
    gid = _known(entry[3]) if entry else 0
    return Account(uid, gid, _memberships(root, name, gid), name, home)


def _group(root: Path, group: str) -> int:
    entry = _find(_lines(root, "/etc/group", 4), group, 2)
    if entry is not None:
        return _known(entry[2])
    if _id(group) is None:
        raise UnknownAccountError(f"group {group!r} is not in the image's /etc/group; use a number, or another image")
    return _known(group)


def _memberships(root: Path, name: str | None, own: int) -> tuple[int, ...]:
    if name is None:
        return ()
    found = {_known(fields[2]) for fields in _lines(root, "/etc/group", 4) if name in fields[3].split(",")}
    return tuple(sorted(found - {own}))


def _find(lines: Iterator[list[str]], wanted: str, id_field: int) -> list[str] | None:
    """Return the entry by name, or by number where ``wanted`` is one."""
    number, by_number = _id(wanted), None
    for fields in lines:
        if fields[0] == wanted:
            if number is not None and number != _id(fields[id_field]):
                raise UnknownAccountError(
                    f"{wanted} is a number, and also a name in the image, whose own number is {fields[id_field]};"
                    " use another image, or another user"
                )
            return fields
        if by_number is None and fields[id_field] == wanted:
            by_number = fields
    return by_number


def _lines(root: Path, path: str, fields: int) -> Iterator[list[str]]:
    for line in read_below(root, path, _MAX_FILE).decode(errors="replace").splitlines():
        parts = line.split(":")
        if len(parts) >= fields and _id(parts[2]) is not None:
            yield parts


def _id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) <= _MAX_ID else None


def _known(text: str) -> int:
    number = _id(text)
    if number is None:
        raise UnknownAccountError(f"{text!r} is not a user or group number")
    return number
