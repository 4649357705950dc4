#!/usr/bin/env bash
# Makes a UCloud virtual machine a node. Put it into a drive folder that instances mount (bootstrap_folder); UCloud runs
# it once, as root, and waits for its end. What differs between machines is in the job's label sandbox-fleet/user-data.
set -euo pipefail
readonly CONFIG=/etc/sandbox-fleet

mkdir -p "$CONFIG"
chmod 0700 "$CONFIG"
ucloud introspect job -json | python3 -c '
import json, os, sys

def find(value):
    """The label, wherever the description of the job has it."""
    if isinstance(value, dict):
        if "sandbox-fleet/user-data" in value:
            return value["sandbox-fleet/user-data"]
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        found = find(item)
        if found is not None:
            return found
    return None

found = find(json.load(sys.stdin))
if found is None:
    sys.exit("sandbox-fleet: this job has no label sandbox-fleet/user-data")
for name, content in json.loads(found)["files"].items():
    path = os.path.join(sys.argv[1], os.path.basename(name))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)
' "$CONFIG"

cat >/etc/systemd/system/sandbox-fleet-bootstrap.service <<'UNIT'
@{bootstrap_service}
UNIT
cat >/usr/local/sbin/sandbox-fleet-bootstrap <<'SCRIPT'
@{bootstrap_script}
SCRIPT
chmod 0755 /usr/local/sbin/sandbox-fleet-bootstrap

# Not waited for: UCloud opens SSH only after this script has ended.
systemctl daemon-reload
systemctl enable sandbox-fleet-bootstrap.service
systemctl start --no-block sandbox-fleet-bootstrap.service
