"""The two shell scripts that move a file, and what their endings mean.  Pure.

``dd`` moves the bytes, because ``cat`` takes small pieces: each read and write costs a switch into gVisor's kernel, and
with 1 MiB at once the sandbox spends a fifth to a quarter less processor time on a file.

They run under the static busybox that is bound into every sandbox, as the sandbox's own user: permissions, symlinks,
mounts and the disk's bound are the sandbox's own, by construction.  An upload ends with fsync: what the disk below did
not take is refused, not lost.  ``$0`` is the busybox; the path comes as an
argument that always contains a slash and never starts with a dash.  Names may hold any byte but NUL, so no name passes
through ``$( )`` unguarded: it would lose newlines at the end.
"""

import errno
import os
from typing import Final

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from node_agent.errors import AT_PROCESS_BOUND

EXIT_DIRECTORY: Final = 21
EXIT_SHORT: Final = 22
EXIT_MISSING: Final = 23
EXIT_SPECIAL: Final = 24
EXIT_PARENT: Final = 25
KILLED: Final = 128  # plus the signal, as a shell reports it

INTERRUPTED: Final = (
    "was not moved: the transfer ended early, as it does when the sandbox restarts or ends; an upload left the file as"
    " it was; try again"
)

UPLOAD: Final = rf"""
b=$0 p=$1 size=$2 part=$3
if [ -L "$p" ]; then
  r=$("$b" readlink -f "$p" && echo x) && p=${{r%?x}}
fi
[ -d "$p" ] && exit {EXIT_DIRECTORY}
case $p in */) exit {EXIT_DIRECTORY};; esac
if [ -e "$p" ] && [ ! -f "$p" ]; then exit {EXIT_SPECIAL}; fi
d=${{p%/*}}
[ -n "$d" ] || d=/
a=$d
while [ ! -e "$a" ]; do
  case $a in */*) a=${{a%/*}};; *) a=.;; esac
  [ -n "$a" ] || a=/
done
[ -d "$a" ] || exit {EXIT_PARENT}
"$b" mkdir -p "$d" || exit 1
mode=$("$b" stat -L -c %a "$p" 2>/dev/null) || mode=
t=$d/$part
# A shell that cannot fork ends at once.  Then it becomes the rm, which fails the second time: that is no success.
trap 'exec "$b" rm "$t" "$t"' EXIT
"$b" dd bs=1M status=none conv=fsync of="$t" || {{ "$b" rm -f "$t"; trap - EXIT; exit 1; }}
have=$("$b" stat -c %s "$t")
if [ "$have" != "$size" ]; then "$b" rm -f "$t"; trap - EXIT; exit {EXIT_SHORT}; fi
[ -z "$mode" ] || "$b" chmod "$mode" "$t"
"$b" mv -f "$t" "$p" || {{ "$b" rm -f "$t"; trap - EXIT; exit 1; }}
trap - EXIT
"""

DOWNLOAD: Final = rf"""
b=$0 p=$1
[ -d "$p" ] && exit {EXIT_DIRECTORY}
if [ -e "$p" ] && [ ! -f "$p" ]; then exit {EXIT_SPECIAL}; fi
if [ ! -e "$p" ]; then
  a=${{p%/*}}
  while [ -n "$a" ] && [ ! -e "$a" ]; do case $a in */*) a=${{a%/*}};; *) a=;; esac; done
  [ -z "$a" ] || [ -d "$a" ] || exit {EXIT_PARENT}
  "$b" stat -L "$p" >/dev/null
  exit {EXIT_MISSING}
fi
exec 3<"$p" || exit 1
"$b" stat -L -c %s "$p" || exit 1
exec "$b" dd bs=1M status=none <&3
"""

_BY_EXIT: Final = {
    EXIT_DIRECTORY: (ErrorCode.IS_DIRECTORY, "is a directory"),
    EXIT_MISSING: (ErrorCode.FILE_NOT_FOUND, "does not exist"),
    EXIT_SPECIAL: (ErrorCode.UNSUPPORTED, "is not a regular file"),
    EXIT_PARENT: (ErrorCode.NOT_A_DIRECTORY, "lies below something that is not a directory"),
    EXIT_SHORT: (ErrorCode.INVALID_REQUEST, "was not written: the body was shorter or longer than announced"),
}
_BY_ERRNO: Final = (
    (
        errno.EAGAIN,
        ErrorCode.START_ERROR,
        f"was not moved: {AT_PROCESS_BOUND}; end some, or create it with a higher one",
    ),
    (errno.ENOMEM, ErrorCode.START_ERROR, "was not moved: the sandbox has no memory left for a process (memory_mb)"),
    (errno.ENOSPC, ErrorCode.DISK_FULL, "was not written: the sandbox's disk is full"),
    (errno.EDQUOT, ErrorCode.DISK_FULL, "was not written: the sandbox's disk quota is used up"),
    (errno.EIO, ErrorCode.DISK_FULL, "was not written: the node's disk did not take it"),
    (errno.EACCES, ErrorCode.FILE_PERMISSION, "may not be read or written by the sandbox's user"),
    (errno.EPERM, ErrorCode.FILE_PERMISSION, "may not be read or written by the sandbox's user"),
    (errno.EROFS, ErrorCode.FILE_PERMISSION, "lies on a read-only file system"),
    (errno.ENOTDIR, ErrorCode.NOT_A_DIRECTORY, "lies below something that is not a directory"),
    (errno.EISDIR, ErrorCode.IS_DIRECTORY, "is a directory"),
    (errno.ELOOP, ErrorCode.INVALID_REQUEST, "is a loop of symbolic links"),
    (errno.ENAMETOOLONG, ErrorCode.INVALID_REQUEST, "has a name that is too long for its file system"),
    (errno.ENOENT, ErrorCode.FILE_NOT_FOUND, "does not exist"),
    (errno.EINVAL, ErrorCode.UNSUPPORTED, "cannot be read or written as a file"),
    (
        errno.EBUSY,
        ErrorCode.UNSUPPORTED,
        "is mounted into the sandbox, so it cannot be replaced as a whole; write to it with a command there",
    ),
)


def argument(path: str) -> str:
    """Return the path as the scripts take it: never mistaken for an option, always with a slash."""
    return path if path.startswith("/") else f"./{path}"


def path_problem(path: str) -> str | None:
    """Return why this cannot be the path of a file; ``None`` when it can."""
    if not path:
        return "must name a file"
    if "\0" in path:
        return "must not contain a NUL byte"
    if len(path.encode(errors="surrogateescape")) > limits.MAX_PATH_BYTES:
        return f"may have {limits.MAX_PATH_BYTES} bytes at most"
    return None


def upload_command(busybox: str, path: str, size: int, part: str) -> tuple[str, ...]:
    """Return the command that reads ``size`` bytes from stdin into ``path``, by way of a file ``part`` beside it."""
    return (busybox, "sh", "-c", UPLOAD, busybox, argument(path), str(size), part)


def download_command(busybox: str, path: str) -> tuple[str, ...]:
    """Return the command that writes the file's size and a newline, then its bytes, to stdout."""
    return (busybox, "sh", "-c", DOWNLOAD, busybox, argument(path))


def explain(exit_code: int, stderr: bytes) -> tuple[ErrorCode, str]:
    """Explain why a script did not end with 0.

    Busybox says what a system call answered in the words of strerror(3) only.

    Returns:
        The code, and the rest of a sentence that begins with the path.
    """
    if exit_code in _BY_EXIT:
        return _BY_EXIT[exit_code]
    if exit_code > KILLED:
        return ErrorCode.TRANSFER_INTERRUPTED, INTERRUPTED
    text = stderr.decode(errors="replace").strip()
    for number, code, sentence in _BY_ERRNO:
        if os.strerror(number) in text:
            return code, sentence
    return ErrorCode.INTERNAL, f"could not be moved: exit code {exit_code}, {text[-500:] or 'without a message'}"
