"""The shell scripts that run inside sandboxes, and the marks that they print between the bytes of a process's output.

The scripts run under the static busybox that is bound into each sandbox.  They exist because Docker cannot say four
things that the port asks for: that a process could not be started, that it has ended although a child holds its pipes,
what its process group is, and how to end that group.  Programs are started by their path and under the exact ``argv``;
the shell only stands around them.

Docker reports an exec's end only when nobody holds its pipes any more.  So the script that starts the process writes a
mark to both pipes after the process's end: everything the process wrote comes before it, and what a background child
writes comes after.  A mark is ``<prefix><kind><value>;`` with a prefix that is random for each exec.

The prefix keeps output from being taken for a mark by chance, not on purpose: processes of the same user see it in the
arguments of the shell.  A forged mark may end or spoil an exec of its own sandbox, and nothing else.
"""

import secrets
from dataclasses import dataclass
from typing import Final

STARTED: Final = "P"
"""Value: the process's id inside the sandbox, which is also its group's and its session's."""
ENDED: Final = "E"
"""Value: exit code, as a shell gives it."""
NOT_FOUND: Final = "N"
NOT_EXECUTABLE: Final = "X"
NO_DIRECTORY: Final = "D"

# Rare as the last byte of a piece of output: a piece that ends with the start of a mark is held back until more comes.
_FIRST: Final = b"\x1e"
_LONGEST: Final = 128


@dataclass(frozen=True)
class Mark:
    """One mark."""

    kind: str
    value: str


def new_prefix() -> str:
    """Return a prefix that no output holds by chance."""
    return secrets.token_hex(16)


class MarkScanner:
    """Splits one stream into output and marks."""

    def __init__(self, prefix: str) -> None:
        self._prefix = _FIRST + prefix.encode()
        self._held = b""

    def feed(self, data: bytes) -> list[bytes | Mark]:
        """Return what ``data`` completes, in order; nothing in it is empty."""
        buffer, at = self._held + data, 0
        found: list[bytes | Mark] = []
        while (start := buffer.find(self._prefix, at)) >= 0:
            end = buffer.find(b";", start, start + _LONGEST)
            if end < 0 and len(buffer) - start < _LONGEST:
                break
            if end < 0:  # looks like a mark and is none
                end = start + len(self._prefix) - 1
                found.append(buffer[at : end + 1])
            else:
                text = buffer[start + len(self._prefix) : end].decode(errors="replace")
                found += [buffer[at:start], Mark(text[:1], text[1:])]
            at = end + 1
        keep = self._start_of_mark(buffer, at)
        found.append(buffer[at:keep])
        self._held = buffer[keep:]
        return [item for item in found if item != b""]

    def rest(self) -> bytes:
        """Return what was held back and is output after all, because the stream has ended."""
        held, self._held = self._held, b""
        return held

    def _start_of_mark(self, buffer: bytes, at: int) -> int:
        """Return where a mark may have begun from ``at`` on that is not complete; else the length of ``buffer``."""
        start = buffer.find(self._prefix, at)
        if start >= 0:
            return start
        start = buffer.find(_FIRST, max(at, len(buffer) - len(self._prefix) + 1))
        while start >= 0:
            if self._prefix.startswith(buffer[start:]):
                return start
            start = buffer.find(_FIRST, start + 1)
        return len(buffer)


# $1 prefix, $2 directory, the rest argv.  Leaves the program's path in $sbx_f and argv in "$@".
# The variables have long names, because one that the process's environment also has would change there.
_FIND: Final = f"""
sbx_t=$1 sbx_d=$2; shift 2
sbx_say() {{ printf '\\036%s%s;' "$sbx_t" "$1"; }}
cd "$sbx_d" 2>/dev/null || {{ sbx_say {NO_DIRECTORY}; exit 126; }}
case $1 in
*/*) sbx_f=$1 ;;
*)
  sbx_f=; IFS=:; set -f
  for sbx_x in ${{PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}}; do
    sbx_x=${{sbx_x:-.}}/$1
    [ -f "$sbx_x" ] || continue
    sbx_f=$sbx_x
    [ ! -x "$sbx_x" ] || break
  done
  unset IFS; set +f ;;
esac
[ -n "$sbx_f" ] && [ -e "$sbx_f" ] || {{ sbx_say {NOT_FOUND}; exit 127; }}
[ -f "$sbx_f" ] && [ -x "$sbx_f" ] || {{ sbx_say {NOT_EXECUTABLE}; exit 126; }}
"""

# Becomes the program: $sbx_f under argv.  The shell's own additions to the environment stay out of it.
_BECOME: Final = 'unset SHLVL PWD OLDPWD; sbx_n=$1; shift; exec -a "$sbx_n" "$sbx_f" "$@"'

# The leader of a new session prints its id, which the program then keeps.
_LEAD: Final = f"""printf "\\036%s{STARTED}$$;" "$1"; sbx_f=$2; shift 2; {_BECOME}"""

EXEC: Final = f"""
exec 3<&0
sbx_b=$1; shift
{_FIND}
"$sbx_b" setsid "$sbx_b" sh -c '{_LEAD}' sh "$sbx_t" "$sbx_f" "$@" <&3 3<&- &
exec </dev/null 3<&- 4>&2 2>/dev/null
wait $!
sbx_n=$?
sbx_say {ENDED}$sbx_n
sbx_say {ENDED}$sbx_n >&4
"""
"""Starts argv in a session of its own and marks start and end.  $1 busybox, $2 prefix, $3 directory, the rest argv.

Descriptor 3 is the process's stdin: a shell gives its background jobs an empty one.  After the start the shell's own
stderr goes nowhere, because it would report there that a signal ended a process.
"""

FIRST: Final = f"""
sbx_o=$1 sbx_e=$2; shift 2
{_FIND}
sbx_say {STARTED}$$
exec </dev/null >>"$sbx_o" 2>>"$sbx_e"
{_BECOME}
"""
"""Becomes the sandbox's first process.  $1 and $2 its log files, then prefix, directory, argv."""

SIGNAL: Final = 'kill -"$2" -"$1"'
"""Sends signal $2 to group $1."""

KILL: Final = """
seen=" $1 "; kill -STOP "$1"; more=1
while [ -n "$more" ]; do
  more=
  for s in /proc/[0-9]*/stat; do
    { read -r line <"$s"; } 2>/dev/null || continue
    p=${line%% *}; r=${line##*) }; r=${r#* }
    parent=${r%% *}; r=${r#* }; group=${r%% *}; r=${r#* }; session=${r%% *}
    case $seen in *" $p "*) continue ;; esac
    case $seen in
    *" $parent "* | *" $group "* | *" $session "*) kill -STOP "$p"; seen="$seen$p "; more=1 ;;
    esac
  done
done
for p in $seen; do kill -KILL "$p"; done
:
"""
"""Kills process $1, its group, its session and all that hangs below.  No forks: the sandbox may be at its limit.

Each is stopped when it is found, so that nothing new can be forked behind the search.
"""
