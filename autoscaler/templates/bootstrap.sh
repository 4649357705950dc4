#!/usr/bin/env bash
# The first step of a machine that is to become a node: fetches the gateway's install.sh, holds it against the digest
# that this machine was ordered with, and runs it. On a prepared image of the same bundle nothing is fetched.
set -euo pipefail

readonly CONFIG=${SANDBOX_FLEET_CONFIG:-/etc/sandbox-fleet}
readonly PREFIX=${SANDBOX_FLEET_PREFIX:-/opt/sandbox-fleet}
readonly RUN=${SANDBOX_FLEET_RUN:-/run/sandbox-fleet}

# One file of the bundle to stdout. Python, because every image with cloud-init has it, and not all have curl.
fetch() {
    python3 - "$GATEWAY_URL/v1/bundle/$1" "$CONFIG/join.token" <<'PYTHON'
import shutil, sys, urllib.request
url, token_file = sys.argv[1:]
with open(token_file) as file:
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + file.read().strip()})
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        shutil.copyfileobj(answer, sys.stdout.buffer)
except OSError as error:
    sys.exit(f"sandbox-fleet: {url}: {error}")
PYTHON
}

# shellcheck source=/dev/null
. "$CONFIG/bootstrap.env"
mkdir -p "$RUN"
[ -e "$RUN/boot-stages" ] || printf 'cloud_init %s\n' "$(cut -d' ' -f1 /proc/uptime)" >"$RUN/boot-stages"

# A machine with a private address only learns neither a way out nor resolvers from its provider's DHCP.
if [ -n "${DEFAULT_ROUTE:-}" ]; then
    [ -n "$(ip route show default)" ] || ip route replace default via "$DEFAULT_ROUTE"
fi
if [ -n "${RESOLVERS:-}" ]; then
    for resolver in $RESOLVERS; do printf 'nameserver %s\n' "$resolver"; done >"$RUN/resolv.conf"
    ln -sf "$RUN/resolv.conf" /etc/resolv.conf
fi

if [ "$(cat "$PREFIX/installed" 2>/dev/null)" = "$BUNDLE_SHA256" ] && [ -x "$PREFIX/install.sh" ]; then
    exec "$PREFIX/install.sh"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch SHA256SUMS >"$work/SHA256SUMS"
fetch install.sh >"$work/install.sh"
(
    cd "$work"
    printf '%s  SHA256SUMS\n' "$BUNDLE_SHA256" | sha256sum --check --strict --quiet
    grep '  install\.sh$' SHA256SUMS | sha256sum --check --strict --quiet
)
bash "$work/install.sh"
