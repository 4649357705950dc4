#!/usr/bin/env bash
# Fetch programs that only tests run and unpack them below .borrowed. They are not installed: an installed cloud-init
# would change how this machine boots, an installed caddy would start. Programs that the machine has are not fetched.
#
# Works without root, wherever apt and Debian's own /usr/bin/python3 are. Where it cannot fetch something it reports that,
# and .borrowed/why holds the reason for the tests that are skipped then; its exit status is 0 all the same.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly HERE=$PWD/.borrowed
# The lists of packages on this machine may be absent or old; then lists of our own are fetched, once.
readonly LISTS=$HERE/lists

say() { printf 'set-up: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "$HERE/bin/$1" ]; }

apt_get() {
    local own=()
    [ ! -d "$LISTS/partial" ] || own=(-o "Dir::State::lists=$LISTS")
    apt-get -qq -o Debug::NoLocking=1 -o "Dir::Cache=$HERE/cache" -o Dir::State::status=/dev/null \
        -o Acquire::http::Timeout=20 -o Acquire::Retries=1 -o APT::Sandbox::User=root -o APT::Install-Recommends=0 \
        "${own[@]}" "$@" </dev/null
}

# The package $1 and those that it needs and whose names match $2, one a line.
closure() {
    local planned
    planned=$(apt_get --simulate install "$1")
    sed -n 's/^Inst \([^ ]*\) .*/\1/p' <<<"$planned" | grep -E "^($1|$2)\$"
}

# Unpack the package $1 and its dependencies whose names match $2.
unpack() {
    local work packages
    packages=$(closure "$1" "$2")
    work=$(mktemp -d "$HERE/work.XXXXXX")
    # shellcheck disable=SC2086  # a list of names
    (cd "$work" && apt_get download $packages)
    for deb in "$work"/*.deb; do dpkg-deb --extract "$deb" "$HERE/root"; done
    rm -r "$work"
}

# Write a launcher $1 that runs $2; it finds its files relative to itself.
launcher() {
    mkdir -p "$HERE/bin"
    # shellcheck disable=SC2016  # expanded when it runs
    printf '#!/bin/sh\nroot=$(dirname "$(readlink -f "$0")")/../root\nexec %s "$@"\n' "$2" >"$HERE/bin/$1.new"
    chmod 0755 "$HERE/bin/$1.new"
    mv "$HERE/bin/$1.new" "$HERE/bin/$1"
}

# shellcheck disable=SC2016  # expanded when the launchers run
bring() {
    local libraries='$root/usr/lib/$(uname -m)-linux-gnu'
    case "$1" in
    caddy)
        unpack caddy nothing-else
        launcher caddy '"$root/usr/bin/caddy"'
        ;;
    cloud-init)
        unpack cloud-init 'python3-.*'
        launcher cloud-init 'env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/usr/lib/python3/dist-packages" \
    /usr/bin/python3 "$root/usr/bin/cloud-init"'
        ;;
    debootstrap)
        unpack debootstrap nothing-else
        launcher debootstrap 'env DEBOOTSTRAP_DIR="$root/usr/share/debootstrap" "$root/usr/sbin/debootstrap"'
        ;;
    shellcheck)
        unpack shellcheck 'lib(ffi|gmp).*'
        launcher shellcheck "env LD_LIBRARY_PATH=\"$libraries\" \"\$root/usr/bin/shellcheck\""
        ;;
    systemd-analyze)
        unpack systemd 'lib(systemd|mount|blkid|kmod|seccomp|cryptsetup|ip4tc|apparmor|fdisk|json-c|devmapper|argon2).*'
        launcher systemd-analyze "env LD_LIBRARY_PATH=\"$libraries/systemd:$libraries\" \"\$root/usr/bin/systemd-analyze\""
        ;;
    esac
}

# One program, in a process of its own: its first failure ends that.
if [ $# -eq 1 ]; then
    bring "$1"
    exit
fi

wanted=()
for program in caddy cloud-init debootstrap shellcheck systemd-analyze; do
    has "$program" || wanted+=("$program")
done
[ "${#wanted[@]}" -gt 0 ] || exit 0

say "fetching ${wanted[*]} for the tests, into .borrowed"
mkdir -p "$HERE/root" "$HERE/cache/archives/partial"
: >"$HERE/why"
for program in "${wanted[@]}"; do
    said=$(bash setup/borrow.sh "$program" 2>&1) && continue
    mkdir -p "$LISTS/partial"
    said=$(apt_get update 2>&1) && said=$(bash setup/borrow.sh "$program" 2>&1) && continue
    printf '%s could not be fetched by setup/borrow.sh: %s\n' "$program" "$(tail -n 1 <<<"$said")" >>"$HERE/why"
    say "$(tail -n 1 "$HERE/why"); its tests are skipped"
done
rm -rf "$HERE/cache" "$HERE"/work.*
