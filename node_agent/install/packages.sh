#!/usr/bin/env bash
# Install what the project needs from Debian: `setup/packages.sh GROUP`, where GROUP is
#   python   a Python 3.11 or newer that can make virtual environments
#   check    what `make check` needs beyond Python packages
#   engines  Docker, gVisor and the helpers that a node uses
#   tests    what tests start beside the engines: PostgreSQL and PgBouncer, of which they run servers of their own
#
# The machine is checked each time; when nothing is missing this takes a moment and prints nothing. On Debian 12 and 13
# and Ubuntu 24.04 as root, missing packages are installed. Elsewhere the script names what is missing and the command
# that installs it, and exits 1.
set -euo pipefail

readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
readonly BACKPORTS=/etc/apt/sources.list.d/sandbox-fleet-backports.sources
readonly PIN=/etc/apt/preferences.d/sandbox-fleet-backports
# gVisor builds before 2024 cannot start on current kernels.
readonly OLDEST_RUNSC=20240101

say() { printf 'set-up: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }

os_id=unknown os_version=
if [ -r /etc/os-release ]; then
    # shellcheck source=/dev/null
    os_id=$(. /etc/os-release && printf %s "${ID:-unknown}")
    # shellcheck source=/dev/null
    os_version=$(. /etc/os-release && printf %s "${VERSION_ID:-}")
fi

installs_here() {
    case "$os_id $os_version" in
    'debian 12' | 'debian 13' | 'ubuntu 24.04') return 0 ;;
    *) return 1 ;;
    esac
}

runsc_fits() {
    local built
    has runsc || return 1
    built=$(runsc --version 2>/dev/null | sed -nE '1s/.*([0-9]{8}).*/\1/p')
    [ "${built:-0}" -ge "$OLDEST_RUNSC" ]
}

# Print the missing Debian packages of a group, one per line. A tool from another source counts as present.
missing() {
    case "$1" in
    python)
        python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || echo python3-venv
        ;;
    check)
        has shellcheck || echo shellcheck
        ;;
    engines)
        has dockerd || echo docker.io
        if ! has docker; then
            # Debian 13 has the client in a package of its own.
            if [ "$os_version" = 13 ]; then echo docker-cli; else echo docker.io; fi
        fi
        runsc_fits || echo runsc
        # The static one: it is bound into sandboxes whose image has no C library.
        if ! has busybox || ldd "$(command -v busybox)" >/dev/null 2>&1; then echo busybox-static; fi
        has nft || echo nftables
        has ip || echo iproute2
        has mkfs.ext4 || echo e2fsprogs
        { has unshare && has setpriv; } || echo util-linux
        { has mount && has losetup; } || echo mount
        has pgrep || echo procps
        [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
        ;;
    tests)
        { has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; } || echo postgresql
        has pgbouncer || echo pgbouncer
        ;;
    *)
        say "unknown group '$1': one of python, check, engines, tests"
        return 2
        ;;
    esac | sort -u
}

# Debian 12 has a gVisor that starts on new kernels in bookworm-backports. The source is taken from the mirror that
# this machine is already set up to use. Ubuntu 24.04 has an old one only, and takes the same package from Debian, and
# nothing else from there: it is one static program, without dependencies.
add_backports() {
    local lines mirror
    # shellcheck disable=SC2016  # apt expands these, not the shell
    lines=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages')
    if grep -q ' bookworm-backports main$' <<<"$lines"; then return; fi
    if [ "$os_id" = ubuntu ]; then
        apt_get update
        apt_get install --no-install-recommends debian-archive-keyring debootstrap
        mirror=$(sed -n 's/^DEF_MIRROR="\(.*\)"$/\1/p' /usr/sbin/debootstrap) # it knows where Debian is
        printf 'Package: *\nPin: release n=bookworm-backports\nPin-Priority: -1\n\n%s\n' \
            $'Package: runsc\nPin: release n=bookworm-backports\nPin-Priority: 990' >"$PIN"
    else
        mirror=$(sed -n 's/ bookworm main$//p' <<<"$lines" | head -n 1)
    fi
    if [ -z "$mirror" ]; then
        say "no Debian mirror for bookworm is configured; add bookworm-backports to apt's sources and run this again"
        return 1
    fi
    printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\nSigned-By: %s\n' \
        "$mirror" "$KEYRING" >"$BACKPORTS"
    say "added bookworm-backports of $mirror, for gVisor ($BACKPORTS)"
    apt_get update
}

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" >&2 </dev/null; }

install_packages() {
    local wanted=("$@") index
    say "installing ${wanted[*]}"
    if [ "$group" = tests ]; then
        # The packages would otherwise start servers of their own.
        mkdir -p /etc/postgresql-common/createcluster.d
        echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/sandbox-fleet.conf
        if [ -d /run/systemd/system ]; then systemctl mask --quiet pgbouncer.service; fi
    fi
    for index in "${!wanted[@]}"; do
        if [ "$os_version" != 13 ] && [ "${wanted[$index]}" = runsc ]; then
            add_backports
            wanted[index]=runsc/bookworm-backports
        fi
    done
    # The lists may be absent or older than the mirror; they are fetched only when the first try shows it.
    apt_get install --no-install-recommends "${wanted[@]}" 2>/dev/null && return
    apt_get update
    apt_get install --no-install-recommends "${wanted[@]}"
}

explain() {
    say "missing: $*"
    if installs_here; then
        say "bring it with: sudo setup/packages.sh $group"
    else
        say "this script installs on Debian 12 and 13 and Ubuntu 24.04 only; elsewhere bring what these packages hold with"
        say "the system's own package manager (runsc of 2024 or newer also comes from gVisor's install page), then run this again"
    fi
    exit 1
}

[ $# -eq 1 ] || { say "usage: setup/packages.sh python|check|engines|tests"; exit 2; }
group=$1
listed=$(missing "$group")
[ -n "$listed" ] || exit 0
mapfile -t absent <<<"$listed"

if ! installs_here || [ "$(id -u)" -ne 0 ]; then
    explain "${absent[@]}"
fi
install_packages "${absent[@]}"
left=$(missing "$group")
if [ -n "$left" ]; then
    say "still missing after the installation: $(tr '\n' ' ' <<<"$left")"
    exit 1
fi
