#!/usr/bin/env bash
# Makes this machine a node: engines from the distribution's packages, the node agent from the gateway's bundle, and
# its service. Runs as root, and may run again after it broke off anywhere.
#
# Reads /etc/sandbox-fleet/bootstrap.env:  GATEWAY_URL, and BUNDLE_SHA256 (digest of the bundle's SHA256SUMS; may be
# empty, then the gateway is believed). The join token lies in /etc/sandbox-fleet/join.token, the agent's settings in
# node.toml beside it. With --image it installs and starts nothing, for an image that others boot from; with --address it
# only notes the address at which the agent is to listen.
set -euo pipefail

readonly CONFIG=${SANDBOX_FLEET_CONFIG:-/etc/sandbox-fleet}
readonly PREFIX=${SANDBOX_FLEET_PREFIX:-/opt/sandbox-fleet}
readonly RUN=${SANDBOX_FLEET_RUN:-/run/sandbox-fleet}
readonly UNITS=${SANDBOX_FLEET_UNITS:-/etc/systemd/system}
readonly MARKER=$PREFIX/installed
readonly BUNDLE=$PREFIX/bundle

say() { printf 'sandbox-fleet: %s\n' "$*" >&2; }

# Notes when a stage was reached, in seconds from the start of the kernel; the node agent reports them to the gateway.
stage() { printf '%s %s\n' "$1" "$(cut -d' ' -f1 /proc/uptime)" >>"$RUN/boot-stages"; }

# Files of the bundle, each whole or not at all. Python, because every image with cloud-init has it, and not all have
# curl; one process for all, because its start costs more than a file.
fetch() {
    python3 - "$GATEWAY_URL/v1/bundle" "$CONFIG/join.token" "$BUNDLE" "$@" <<'PYTHON'
import os, shutil, sys, urllib.request
base, token_file, directory, *names = sys.argv[1:]
with open(token_file) as file:
    headers = {"Authorization": "Bearer " + file.read().strip()}
for name in names:
    path = os.path.join(directory, name)
    request = urllib.request.Request(f"{base}/{name}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer, open(path + ".part", "wb") as part:
            shutil.copyfileobj(answer, part)
    except OSError as error:
        sys.exit(f"sandbox-fleet: {request.full_url}: {error}")
    os.replace(path + ".part", path)
PYTHON
}

# Whether a file is one for this machine's Python: wheels for another one are left out.
wanted() {
    case "$1" in
    *-cp[0-9]*-abi3-*) return 0 ;;
    *-cp[0-9]*) [[ $1 == *-"$python"-* ]] ;;
    *) return 0 ;;
    esac
}

fetch_bundle() {
    local digest file listed absent=()
    mkdir -p "$BUNDLE"
    fetch SHA256SUMS
    digest=$(sha256sum "$BUNDLE/SHA256SUMS" | cut -d' ' -f1)
    if [ -n "${BUNDLE_SHA256:-}" ] && [ "$digest" != "$BUNDLE_SHA256" ]; then
        say "the gateway's bundle ($digest) is not the one that this machine was ordered with ($BUNDLE_SHA256)"
        return 1
    fi
    python=$(python3 -c 'import sys; print(f"cp{sys.version_info.major}{sys.version_info.minor}")')
    listed=$BUNDLE/SHA256SUMS.here
    : >"$listed"
    while read -r digest file; do
        wanted "$file" || continue
        printf '%s  %s\n' "$digest" "$file" >>"$listed"
        printf '%s  %s\n' "$digest" "$BUNDLE/$file" | sha256sum --check --status 2>/dev/null || absent+=("$file")
    done <"$BUNDLE/SHA256SUMS"
    [ "${#absent[@]}" -eq 0 ] || fetch "${absent[@]}"
    (cd "$BUNDLE" && sha256sum --check --strict --quiet "$listed")
}

install_agent() {
    local wheel
    wheel=$(cd "$BUNDLE" && ls sandbox_fleet-*.whl)
    rm -rf "$PREFIX/venv"
    python3 -m venv "$PREFIX/venv"
    local pip=("$PREFIX/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-index)
    "${pip[@]}" --find-links "$BUNDLE" --require-hashes --requirement "$BUNDLE/requirements.txt"
    # Its own digest is in SHA256SUMS; with the extra named, pip makes sure that the lock has brought everything.
    "${pip[@]}" "$BUNDLE/${wheel}[node]"
    install -m 0644 "$BUNDLE/sandbox-fleet-node.service" "$UNITS/sandbox-fleet-node.service"
}

# The address at which the gateway reaches this machine is the one from which this machine reaches the gateway.
own_address() {
    python3 - "$GATEWAY_URL" <<'PYTHON'
import socket, sys, urllib.parse
parts = urllib.parse.urlsplit(sys.argv[1])
port = parts.port or (443 if parts.scheme == "https" else 80)
for family, kind, protocol, _, address in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM):
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        print(probe.getsockname()[0])
    break
PYTHON
}

write_address() {
    local address
    address=$(own_address)
    (umask 077 && printf 'SANDBOXES_NODE_HOST=%s\n' "$address" >"$CONFIG/node.env")
}

# Without a service manager (in a container, in a test) the caller starts the agent itself.
start() {
    write_address
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl enable --now sandbox-fleet-node.service
    fi
}

# shellcheck source=/dev/null
. "$CONFIG/bootstrap.env"
if [ "${1:-}" = --address ]; then
    write_address
    exit
fi
mkdir -p "$RUN" "$PREFIX"
if [ -z "${BUNDLE_SHA256:-}" ] || [ "$(cat "$MARKER" 2>/dev/null)" != "$BUNDLE_SHA256" ]; then
    rm -f "$MARKER"
    fetch_bundle
    bash "$BUNDLE/packages.sh" python
    bash "$BUNDLE/packages.sh" engines
    stage engines
    install_agent
    stage bundle
    sha256sum "$BUNDLE/SHA256SUMS" | cut -d' ' -f1 >"$MARKER"
    install -m 0755 "$BUNDLE/install.sh" "$PREFIX/install.sh"
fi
[ "${1:-}" = --image ] || start
