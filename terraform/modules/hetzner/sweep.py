"""Delete every worker of a fleet before the gateway and the network; run by sweep.tf at destroy.

The order matters: a running autoscaler would create new workers while the old ones are deleted.

1. Refuse while the machines are protected: the destroy would fail half-way.
2. On the gateway, over SSH: stop the autoscaler for good and let it release its fleet.
3. Through the API: delete what still carries the labels of an operation of this fleet, servers first, then the
   addresses and volumes that they left, and poll until the listings are empty.

Python's standard library only, so that the machine that runs Terraform needs nothing but python3 and ssh.

Environment:
    SWEEP_DEPLOYMENT: name of the fleet.
    SWEEP_HOST: address of the gateway.
    SWEEP_PROTECTED: ``true`` while the machines are protected.
    SWEEP_WITHOUT_GATEWAY: ``yes`` leaves out step 2, for a gateway that is known to be gone.
    SWEEP_SSH_ARGS: more arguments of ssh, such as ``-i KEY -J HOST``.
    HCLOUD_TOKEN, HCLOUD_ENDPOINT: as for the Terraform provider.

The exit code is 0 when nothing is left; otherwise it is 1, with a message.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

ENDPOINT = "https://api.hetzner.cloud/v1"
CALL_SECONDS = 30
SSH_SECONDS = 420
WITHIN_SECONDS = float(os.environ.get("SWEEP_SECONDS", "600"))
PAUSE_SECONDS = float(os.environ.get("SWEEP_PAUSE_SECONDS", "5"))
PER_PAGE = 50
# Servers first: what hangs on one cannot be deleted.
KINDS = ("servers", "primary_ips", "floating_ips", "volumes")
LATER = (409, 423, 429, 500, 502, 503, 504)  # conflict, locked, rate limit, or an error of the API itself
# Only a daemon that keeps running is a reason to stop; what the release leaves is deleted afterwards, by label.
STOP = (
    "systemctl disable --now sandbox-autoscaler.path sandbox-autoscaler.service || exit 3;"
    " runuser -u sandbox-autoscaler --"
    " /opt/sandbox-fleet/autoscaler/bin/sandboxes autoscaler release --config /etc/sandbox-fleet/autoscaler.toml"
    " || echo 'sweep: the release left something behind' >&2"
)


def say(sentence, stream=None):
    """Print a line for the operator, unbuffered: Terraform shows it as it comes."""
    (stream or sys.stdout).write(f"{sentence}\n")
    (stream or sys.stdout).flush()


class SweepError(Exception):
    """The sweep cannot go on; the message says why and what to do."""


class BusyError(Exception):
    """The API cannot do it now; a later attempt may succeed."""


class Api:
    """The few calls of the Hetzner Cloud API that are needed."""

    def __init__(self, endpoint, token):
        self._endpoint = endpoint.rstrip("/")
        self._token = token

    def call(self, method, path, query=None):
        """Send one call and return the decoded response; None when the resource does not exist.

        Raises:
            BusyError: a later attempt may succeed.
            SweepError: none will.
        """
        url = self._endpoint + path + ("?" + urllib.parse.urlencode(query) if query else "")
        headers = {"Authorization": "Bearer " + self._token}
        request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - the operator's own endpoint
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310 - as above
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:
                words = error.read(2000).decode(errors="replace")
            if error.code == 404:
                return None
            if error.code in LATER and "protected" not in words:
                raise BusyError(f"{method} {path}: {error.code} {words}") from error
            raise SweepError(f"{method} {path}: {error.code} {words}") from error
        except (OSError, ValueError) as error:
            raise BusyError(f"{method} {path}: {error}") from error

    def listed(self, kind, deployment):
        """Return the ids of everything of this kind that an operation of the fleet created."""
        query = {
            "label_selector": f"sandbox-fleet/deployment=={deployment},sandbox-fleet/op",
            "per_page": PER_PAGE,
            "sort": "id:asc",
            "page": 1,
        }
        found = []
        while query["page"] is not None:
            answer = self.call("GET", "/" + kind, query)
            if answer is None:
                raise SweepError(f"the API has no list of {kind}")
            found += [item["id"] for item in answer[kind]]
            query["page"] = answer["meta"]["pagination"]["next_page"]
        return found


def stop_autoscaler(host):
    """Stop the daemon for good and let it release its fleet.

    Raises:
        SweepError: it could not be stopped.
    """
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "StrictHostKeyChecking=accept-new"]
    command += [*shlex.split(os.environ.get("SWEEP_SSH_ARGS", "")), "root@" + host, STOP]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=SSH_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweepError(f"the autoscaler on {host} could not be stopped: {error}") from error
    if done.returncode != 0:
        raise SweepError(
            f"the autoscaler on {host} could not be stopped (ssh exited with {done.returncode}), and a running one"
            " would make new workers. Give ssh what it needs in SWEEP_SSH_ARGS, or, if that machine is gone, set"
            " SWEEP_WITHOUT_GATEWAY=yes"
        )


def delete_all(api, kind, deployment):
    """Request the deletion of everything of this kind; return how many are left.

    One that cannot be deleted now does not keep the others from it.
    """
    left = api.listed(kind, deployment)
    for number in left:
        try:
            api.call("DELETE", f"/{kind}/{number}")
        except BusyError as error:
            say(f"sweep: later: {error}")
    return len(left)


def sweep(api, deployment):
    """Delete until nothing is listed any more.

    Raises:
        SweepError: something is left when the time is over, or the API refuses.
    """
    deadline = time.monotonic() + WITHIN_SECONDS
    for kind in KINDS:
        while True:
            try:
                left = delete_all(api, kind, deployment)
            except BusyError as error:
                say(f"sweep: {error}")
                left = -1
            if left == 0:
                break
            if time.monotonic() > deadline:
                raise SweepError(f"{kind} of {deployment} are left after {WITHIN_SECONDS:.0f} s")
            say(f"sweep: {kind} of {deployment} are being deleted: {left if left > 0 else 'unknown'}")
            # The API has no way to wait for an end, and counts calls.
            time.sleep(PAUSE_SECONDS)


def main():
    """Run the steps and return the exit code."""
    deployment, host = os.environ["SWEEP_DEPLOYMENT"], os.environ["SWEEP_HOST"]
    token = os.environ.get("HCLOUD_TOKEN", "")
    try:
        if os.environ["SWEEP_PROTECTED"] != "false":
            raise SweepError(f"the fleet {deployment} is protected; first run: terraform apply -var protect=false")
        if not token:
            raise SweepError("HCLOUD_TOKEN is not set; the sweep reads the token from there, as the provider does")
        if os.environ.get("SWEEP_WITHOUT_GATEWAY") != "yes":
            stop_autoscaler(host)
        sweep(Api(os.environ.get("HCLOUD_ENDPOINT") or ENDPOINT, token), deployment)
    except SweepError as error:
        say(f"error: {error}", sys.stderr)
        return 1
    say(f"sweep: nothing of {deployment} is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
