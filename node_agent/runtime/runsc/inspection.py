"""Whether a sandbox has a directory or a program, asked on the host before anything starts.

An init would start well and only then fail to start a program that is not there; and runsc makes a working directory
that is missing, as root.  Both are mistakes of the spec that its author has to be told.
"""

import os
import posixpath
import stat
from dataclasses import dataclass
from pathlib import Path

from node_agent.host.accounts import Account
from node_agent.host.disk import open_below
from node_agent.runtime.runsc.oci_bundle import FirstProcess

_ENGINES = ("/proc", "/sys", "/dev", "/.sandbox")  # mounted by the engine; always there
_EMPTY = ("/tmp", "/run")  # noqa: S108 - fresh file systems inside the sandbox


@dataclass(frozen=True)
class View:
    """The file systems of a sandbox, as the host has them.

    Attributes:
        rootfs: its root on the host.
        workspace: its workspace on the host.
        workspace_path: where that is mounted inside.
    """

    rootfs: Path
    workspace: Path
    workspace_path: str

    def problem(self, process: FirstProcess) -> str | None:
        """Why the process could not start, as far as its files tell; ``None`` when nothing speaks against it."""
        directory = self._status(process.working_dir)
        if directory is None or not stat.S_ISDIR(directory.st_mode):
            return f"its working directory {process.working_dir} is not there"
        name = process.argv[0]
        search = [""] if "/" in name else process.env.get("PATH", "").split(":")
        problem = f"{name} was not found in PATH ({process.env.get('PATH', '')})"
        for folder in search:
            path = posixpath.join(process.working_dir, folder, name)
            found = self._status(path)
            if found is not None:
                if _executable(found, process.account):
                    return None
                problem = f"{path} is not an executable file for user {process.account.uid}"
            elif "/" in name:
                problem = f"{name} is not there"
        return problem

    def shows_directory(self, path: str) -> bool:
        """Whether there is a directory; ``False`` also where only the sandbox itself could tell."""
        path = posixpath.normpath(path)
        found = None if _is_below(path, *_ENGINES, *_EMPTY) else self._status(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _status(self, path: str) -> os.stat_result | None:
        path = posixpath.normpath(path)
        if _is_below(path, *_ENGINES):
            return self.rootfs.stat() if path in _ENGINES else _ANY_PROGRAM
        if path in _EMPTY:
            return self.rootfs.stat()
        if _is_below(path, *_EMPTY) and not _is_below(self.workspace_path, *_EMPTY):
            return None
        root = self.rootfs
        if _is_below(path, self.workspace_path):
            root, path = self.workspace, path.removeprefix(self.workspace_path) or "/"
        try:
            descriptor = open_below(root, path, os.O_PATH)
        except OSError:
            return None
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)


_ANY_PROGRAM = os.stat_result((stat.S_IFREG | 0o755, 0, 0, 1, 0, 0, 0, 0, 0, 0))


def _is_below(path: str, *directories: str) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def _executable(status: os.stat_result, account: Account) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if account.uid == 0:
        return bool(status.st_mode & 0o111)
    if account.uid == status.st_uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid in (account.gid, *account.groups):
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)
