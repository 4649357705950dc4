"""What a gateway needs of its machine: the rows of this role in ``sandboxes doctor``."""

import shutil
import socket
import stat
import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import requests
from pydantic import ValidationError

from gateway.settings import GatewaySettings
from gateway.wire.limits import MIB
from gateway.wire.settings import ConfigurationError
from gateway.wire.system import DISTRIBUTION, PACKAGES, Check, GatewayHealth, Verdict

OLDEST_PYTHON: Final = (3, 11)
NEEDED_MODULES: Final = ("fastapi", "uvicorn", "aiohttp", "sqlmodel", "alembic")
LEAST_DISK: Final = 512 * MIB  # below this the database and the first image have no room
COMFORTABLE_DISK: Final = 10 * 1024 * MIB
PROBE_SECONDS: Final = 2.0
PORT_CURE: Final = "end what listens there (ss -ltnp), or choose another: sandboxes up --port N"


def python_version(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    """Check that this Python is new enough."""
    found = ".".join(map(str, version))
    if version >= OLDEST_PYTHON:
        return Check(name="python", verdict=Verdict.OK, found=found)
    return Check(name="python", verdict=Verdict.ERROR, found=found, cure="install Python 3.11 or newer")


def python_packages(needed: tuple[str, ...] = NEEDED_MODULES) -> Check:
    """Check that the gateway's packages are installed; a machine that is only a node rightly lacks them."""
    absent = [name for name in needed if find_spec(name) is None]
    if not absent:
        return Check(name="python packages", verdict=Verdict.OK, found=", ".join(needed))
    return Check(
        name="python packages",
        verdict=Verdict.WARNING,
        found=f"not installed: {', '.join(absent)}, so this machine cannot be a gateway",
        cure=f"pip install '{DISTRIBUTION}[gateway]'",
    )


def package_names(owners: dict[str, list[str]] | None = None) -> Check:
    """Check that no other distribution has overwritten one of our package names."""
    installed: dict[str, list[str]] = dict(packages_distributions()) if owners is None else owners
    conflicts = {name: others for name in PACKAGES if (others := sorted({*installed.get(name, [])} - {DISTRIBUTION}))}
    if not conflicts:
        return Check(name="package names", verdict=Verdict.OK, found=f"{', '.join(PACKAGES)} are ours alone")
    return Check(
        name="package names",
        verdict=Verdict.ERROR,
        found="; ".join(f"{name} is also in {', '.join(others)}" for name, others in conflicts.items()),
        cure=f"install {DISTRIBUTION} into a virtual environment of its own",
    )


def port(host: str, number: int) -> Check:
    """Check that the gateway can listen there, or already does."""
    name = f"port {number}"
    error = refusal_to_listen(host, number)
    if error is None:
        return Check(name=name, verdict=Verdict.OK, found=f"free on {host}")
    if _gateway_answers(host, number):
        return Check(name=name, verdict=Verdict.OK, found=f"a gateway answers on {host}")
    return Check(
        name=name,
        verdict=Verdict.ERROR,
        found=f"{host}: {error.strerror or error}",
        cure=PORT_CURE,
    )


def refusal_to_listen(host: str, number: int) -> OSError | None:
    """Return the error with which the kernel refuses a listener there; ``None`` when it allows one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does: a port whose old connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            return error
    return None


def _gateway_answers(host: str, number: int) -> bool:
    origin = f"[{host}]" if ":" in host else host
    try:
        answer = requests.get(f"http://{origin}:{number}/healthz", timeout=PROBE_SECONDS)
        return GatewayHealth.model_validate_json(answer.content).service == "gateway"
    except (requests.RequestException, ValidationError):
        return False


def state_dir(path: Path) -> Check:
    """Check that the state can be kept there and that others cannot read it."""
    name = "state directory"
    if not path.exists():
        return Check(name=name, verdict=Verdict.OK, found=f"{path} will be created")
    if not path.is_dir():
        return Check(name=name, verdict=Verdict.ERROR, found=f"{path} is not a directory", cure=f"move {path} away")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return Check(
            name=name,
            verdict=Verdict.WARNING,
            found=f"{path} is open to others (mode {mode:o})",
            cure=f"chmod 700 {path}",
        )
    return Check(name=name, verdict=Verdict.OK, found=f"{path}, closed to others")


def disk(path: Path, free: int | None = None) -> Check:
    """Check that there is room for the state.

    Args:
        path: the state directory.
        free: bytes that are free there; ``None`` measures them.
    """
    place = next(parent for parent in (path, *path.parents) if parent.exists())
    left = shutil.disk_usage(place).free if free is None else free
    found = f"{left / (1024 * MIB):.1f} GiB free under {place}"
    if left < LEAST_DISK:
        return Check(name="disk", verdict=Verdict.ERROR, found=found, cure=f"make room under {place}")
    if left < COMFORTABLE_DISK:
        return Check(
            name="disk",
            verdict=Verdict.WARNING,
            found=found,
            cure="make room: images and disks will soon need it",
        )
    return Check(name="disk", verdict=Verdict.OK, found=found)


def tokens(directory: Path) -> Check:
    """Check that nobody else can read the first tokens."""
    files = sorted(directory.glob("*")) if directory.is_dir() else []
    if not files:
        return Check(
            name="tokens", verdict=Verdict.OK, found=f"none in {directory}; 'sandboxes up' creates the first ones"
        )
    loose = [str(path) for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if loose:
        return Check(
            name="tokens",
            verdict=Verdict.ERROR,
            found=f"others may read {', '.join(loose)}",
            cure=f"chmod 600 {' '.join(loose)}; then revoke them (sandboxes token revoke) and create new ones",
        )
    return Check(name="tokens", verdict=Verdict.OK, found=", ".join(str(path) for path in files))


def policy(path: Path | None) -> Check:
    """Check that a gateway can read the policy file."""
    from gateway.services.policies import read_policies  # where the gateway's packages are installed

    name = "policy"
    if path is None:
        return Check(name=name, verdict=Verdict.OK, found="no policy_file is set: the built-in defaults hold")
    try:
        read_policies(path)
    except ConfigurationError as error:
        cure = f"correct {path}; a gateway that runs keeps to the policy before, and none starts with it"
        return Check(name=name, verdict=Verdict.ERROR, found=str(error), cure=cure)
    return Check(name=name, verdict=Verdict.OK, found=str(path))


def checks() -> list[Check]:
    """Return all rows of the gateway's role, for the settings of this environment."""
    packages = python_packages()
    rows = [python_version(), packages, package_names()]
    if packages.verdict is not Verdict.OK:
        return rows
    try:
        settings: GatewaySettings = GatewaySettings.load()
    except ConfigurationError as error:
        cure = "correct the SANDBOXES_GATEWAY_* variables"
        return [*rows, Check(name="gateway settings", verdict=Verdict.ERROR, found=str(error), cure=cure)]
    return [
        *rows,
        port(settings.host, settings.port),
        state_dir(settings.state_dir),
        tokens(settings.state_dir.parent / "tokens"),
        disk(settings.state_dir),
        policy(settings.policy_file),
    ]
