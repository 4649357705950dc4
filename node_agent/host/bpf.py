"""Which device nodes the processes of a control group of version 2 may open.

Version 1 has files for it.  Version 2 has only bpf(2), and this is the small part of it that is needed: a program that
the kernel asks before it opens or makes a device node, attached to a group and so to all groups below.
"""

import ctypes
import errno
import itertools
import os
import platform
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from node_agent.host.devices import DeviceRule
from node_agent.host.disk import libc

UNAVAILABLE: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL})
"""Errors of a kernel that has no such programs, or does not let this process use them."""
_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
_LOAD, _ATTACH, _DETACH, _BY_ID, _QUERY = 5, 8, 9, 13, 16  # commands, linux/bpf.h
_PROG_TYPE_CGROUP_DEVICE: Final = 15
_ATTACH_TYPE_DEVICE: Final = 6
_ALLOW_MULTI: Final = 2  # programs of groups below are asked as well: runc brings its own
_MAX_PROGRAMS: Final = 64  # on one group, by the kernel's own bound

# union bpf_attr, as far as each command reads it.
_LOAD_ATTR: Final = struct.Struct("=IIQQIIQII")
_ATTACH_ATTR: Final = struct.Struct("=IIII")
_BY_ID_ATTR: Final = struct.Struct("=III")
_QUERY_ATTR: Final = struct.Struct("=IIIIQI")

# struct bpf_cgroup_dev_ctx: access << 16 | kind, major, minor.
_KINDS: Final = {"b": 1, "c": 2}
_ACCESS: Final = {"m": 1, "r": 2, "w": 4}
_INSTRUCTION: Final = struct.Struct("=BBhi")
_LOAD_WORD, _AND, _SHIFT_RIGHT, _MOVE, _JUMP_IF_NOT, _JUMP_IF_ANY, _EXIT = 0x61, 0x54, 0x74, 0xB7, 0x55, 0x45, 0x95
_RESULT, _CONTEXT, _KIND, _MAJOR, _MINOR, _WANTED = 0, 1, 2, 3, 4, 5  # registers


def device_program(rules: Iterable[DeviceRule]) -> bytes:
    """Return the program that allows what one of the rules allows, and nothing else."""
    code = [
        _op(_LOAD_WORD, _KIND, source=_CONTEXT, offset=0),
        _op(_LOAD_WORD, _WANTED, source=_CONTEXT, offset=0),
        _op(_AND, _KIND, value=0xFFFF),
        _op(_SHIFT_RIGHT, _WANTED, value=16),
        _op(_LOAD_WORD, _MAJOR, source=_CONTEXT, offset=4),
        _op(_LOAD_WORD, _MINOR, source=_CONTEXT, offset=8),
    ]
    code += itertools.chain.from_iterable(map(_rule, rules))
    return b"".join([*code, *_answer(0)])


def _rule(rule: DeviceRule) -> list[bytes]:
    refused = sum(bit for letter, bit in _ACCESS.items() if letter not in rule.access)
    tests = [(_JUMP_IF_NOT, _KIND, _KINDS[rule.kind])]
    tests += [(_JUMP_IF_NOT, _MAJOR, rule.major)] if rule.major is not None else []
    tests += [(_JUMP_IF_NOT, _MINOR, rule.minor)] if rule.minor is not None else []
    tests += [(_JUMP_IF_ANY, _WANTED, refused)] if refused else []
    allow = _answer(1)
    behind = len(tests) + len(allow)
    return [
        *(_op(jump, register, offset=behind - at - 1, value=value) for at, (jump, register, value) in enumerate(tests)),
        *allow,
    ]


def _answer(value: int) -> list[bytes]:
    return [_op(_MOVE, _RESULT, value=value), _op(_EXIT)]


def _op(code: int, register: int = 0, *, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, register | source << 4, offset, value)


def attached(group: Path) -> list[int]:
    """Return the ids of the device programs that are attached to a group itself.

    Raises:
        OSError: the kernel has no such programs, or does not let this process ask.
    """
    ids = (ctypes.c_uint32 * _MAX_PROGRAMS)()
    target = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        attr = _QUERY_ATTR.pack(target, _ATTACH_TYPE_DEVICE, 0, 0, ctypes.addressof(ids), _MAX_PROGRAMS)
        answer = _bpf(_QUERY, attr)[1]
    finally:
        os.close(target)
    return list(ids)[: _QUERY_ATTR.unpack(answer)[-1]]


def attach(group: Path, rules: Sequence[DeviceRule]) -> None:
    """Let the processes of a group, and of all below it, open only what the rules allow.

    The rules take the place of those of an earlier call; they go with the group.

    Raises:
        OSError: the kernel has no such programs, or does not let this process load one.
    """
    earlier = attached(group)
    target = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        program = _load(device_program(rules))
        try:
            _bpf(_ATTACH, _ATTACH_ATTR.pack(target, program, _ATTACH_TYPE_DEVICE, _ALLOW_MULTI))
        finally:
            os.close(program)
        for number in earlier:
            _detach(target, number)
    finally:
        os.close(target)


def _load(program: bytes) -> int:
    code, license_name = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"Apache-2.0")
    count = len(program) // _INSTRUCTION.size
    addresses = ctypes.addressof(code), ctypes.addressof(license_name)
    return _bpf(_LOAD, _LOAD_ATTR.pack(_PROG_TYPE_CGROUP_DEVICE, count, *addresses, 0, 0, 0, 0, 0))[0]


def _detach(target: int, number: int) -> None:
    program = _bpf(_BY_ID, _BY_ID_ATTR.pack(number, 0, 0))[0]
    try:
        _bpf(_DETACH, _ATTACH_ATTR.pack(target, program, _ATTACH_TYPE_DEVICE, 0))
    finally:
        os.close(program)


def _bpf(command: int, attr: bytes) -> tuple[int, bytes]:
    """Call bpf(2); return its result, and the attributes as the kernel left them."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) has no known number on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attr, len(attr))
    result: int = libc().syscall(ctypes.c_long(number), command, buffer, len(attr))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf: {os.strerror(error)}")
    return result, buffer.raw
