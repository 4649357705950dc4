"""The shell scripts that run inside sandboxes, under the static busybox that is bound into each.

They exist because Docker cannot say four things that the port asks for: that a process could not be started, that it
has ended although a child holds its pipes, what its process group is, and how to end that group.  Programs are started
by their path and under the exact ``argv``; the shell only stands around them.
"""

from typing import Final

from node_agent.runtime.docker_engine.marks import ENDED, NO_DIRECTORY, NOT_EXECUTABLE, NOT_FOUND, STARTED

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

# The leader of a new session tells its id, which the program then keeps.
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
stderr goes nowhere, because it would tell there of a process that a signal ended.
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
