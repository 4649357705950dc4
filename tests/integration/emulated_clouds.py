"""What tests of a whole fleet need of the emulated clouds: how pools are set up, what is there, what breaks."""

import contextlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Protocol

from autoscaler.user_data import ucloud_init_script
from providers.base import OPERATION_LABEL, POOL_LABEL
from tests.fakes.booting import Booter
from tests.fakes.hetzner.control import Control
from tests.fakes.hetzner.emulator import emulator
from tests.fakes.ucloud import lab
from tests.fakes.ucloud.auth import API_TOKEN, CACHE_SECONDS, PROJECT

SPEED = 60.0
"""Seconds of the cloud for each real one."""


class Trouble(StrEnum):
    """What may befall a cloud for a while."""

    DOWN = "down"  # connections break
    BLIND = "blind"  # nothing can be listed, all else works
    MAINTENANCE = "maintenance"  # every call is answered with a page in HTML
    EXPIRED = "expired"  # the token is good for nothing any more
    QUOTA = "quota"  # no further machine may be made; all else works


class Cloud(Protocol):
    """One emulated account."""

    name: str
    provider: Mapping[str, object]
    """The provider's table of the autoscaler's settings."""
    pool: Mapping[str, object]
    """What pools of this cloud have in their settings."""
    environ: Mapping[str, str]

    def here(self, pool: str = "") -> list[str]:
        """Return the operation of each machine that is there now, as the cloud itself knows it."""

    def ever(self, pool: str = "") -> list[str]:
        """Return the operation of every machine ever made."""

    def cost(self) -> float:
        """Return the seconds paid for until now."""

    def later(self) -> None:
        """Let two hours pass."""

    def lose_answer(self) -> None:
        """Carry out the next order and lose its answer."""

    def suffer(self, trouble: Trouble) -> None:
        """Let the cloud suffer until `heal`."""

    def heal(self) -> None:
        """End all trouble."""


class Hetzner:
    name = "hetzner"

    def __init__(self, control: Control) -> None:
        self._control = control
        self.environ = {"HCLOUD_TOKEN": control.token}
        self.provider: dict[str, object] = {
            "kind": "hetzner",
            "endpoint": control.api,
            "ssh_keys": ["fleet"],
            "leftovers_seconds": 0,
        }
        self.pool: dict[str, object] = {
            "image": "debian-12",
            "offers": [{"type": "cpx62", "location": "fsn1"}],
            "billing_margin_seconds": 3600,
        }

    def here(self, pool: str = "") -> list[str]:
        return [server["labels"][OPERATION_LABEL] for server in self._control.here() if _of(pool, server["labels"])]

    def ever(self, pool: str = "") -> list[str]:
        return [s["labels"][OPERATION_LABEL] for s in self._control.audit()["servers"] if _of(pool, s["labels"])]

    def cost(self) -> float:
        return float(sum(server["billed_seconds"] for server in self._control.audit()["servers"]))

    def later(self) -> None:
        self._control.advance(7200)

    def lose_answer(self) -> None:
        self._control.fault("lost", on="POST /servers")

    def suffer(self, trouble: Trouble) -> None:
        match trouble:
            case Trouble.DOWN:
                self._control.fault("drop", times=None)
            case Trouble.BLIND:
                self._control.fault("error", on="GET /servers", times=None, status=500)
            case Trouble.MAINTENANCE:
                self._control.fault("html", times=None, status=503)
            case Trouble.EXPIRED:
                self._control.knobs(token_mode="expired")
            case Trouble.QUOTA:
                self._control.knobs(server_limit=len(self._control.here()))

    def heal(self) -> None:
        self._control.calm()
        self._control.knobs(token_mode="rw", server_limit=1000)


class UCloud:
    name = "ucloud"

    def __init__(self, account: lab.Lab) -> None:
        self.remote = account.remote
        self.remote.ask("files", **{f"{lab.FOLDER}/init.sh": ucloud_init_script()})
        self.environ = {"API": API_TOKEN}
        self.provider: dict[str, object] = {
            "kind": "ucloud",
            "base_url": account.url,
            "project": PROJECT,
            "api_token_env": "API",
            "bootstrap_folder": lab.FOLDER,
        }
        self.pool: dict[str, object] = {
            "image": "vm-ubuntu/24.04",
            "offers": [{"type": lab.CPU, "location": "ucloud"}],
        }

    def sells_gpus(self) -> Mapping[str, object]:
        """Open the GPU product to virtual machines, and return the settings of a pool of them."""
        self.remote.ask("product", name=lab.GPU, vm=True)
        self.provider["allow_gpu"] = True
        return {"offers": [{"type": lab.GPU, "location": "ucloud"}], "runtimes": ["runsc", "docker"]}

    def here(self, pool: str = "") -> list[str]:
        truth = self.remote.truth()
        ended = [job for job, machine in truth["machines"].items() if machine["phase"] == "ended"]
        live = [op for op, jobs in self._started(truth, pool).items() for job in jobs if job not in ended]
        return live + list(truth["orphans"])

    def ever(self, pool: str = "") -> list[str]:
        return [operation for operation, jobs in self._started(self.remote.truth(), pool).items() for _ in jobs]

    def cost(self) -> float:
        truth = self.remote.truth()
        return float(sum(truth["billed_seconds"].get(job, 0) for jobs in truth["started"].values() for job in jobs))

    def later(self) -> None:
        self.remote.advance(7200)

    def lose_answer(self) -> None:
        self.remote.fault("lost_response", "submit")

    def suffer(self, trouble: Trouble) -> None:
        match trouble:
            case Trouble.DOWN:
                self.remote.fault("lost_request", times=None)
            case Trouble.BLIND:
                self.remote.fault("gateway", "browse", times=None, status=502)
            case Trouble.MAINTENANCE:
                self.remote.fault("gateway", times=None, status=503)
            case Trouble.EXPIRED:
                self.remote.ask("credentials", do="revoke")
                self.remote.advance(CACHE_SECONDS)
            case Trouble.QUOTA:
                # The wallet itself would also stop the machines that run.
                why, code = "This workspace has reached the cpu-amd-zen5 quota.", "NOT_ENOUGH_COMPUTE_CREDITS"
                self.remote.fault("error", "submit", times=None, status=402, why=why, code=code)

    def heal(self) -> None:
        self.remote.ask("heal")
        self.remote.ask("credentials", do="restore")

    @staticmethod
    def _started(truth: Any, pool: str) -> dict[str, list[str]]:
        mine = {
            op: [job for job in jobs if _of(pool, truth["jobs"][job]["labels"])]
            for op, jobs in truth["started"].items()
        }
        return {op: jobs for op, jobs in mine.items() if jobs}


def _of(pool: str, labels: Mapping[str, str]) -> bool:
    return pool in ("", labels.get(POOL_LABEL))


@contextlib.contextmanager
def hetzner_cloud(booter: Booter) -> Iterator[Hetzner]:
    with emulator(pace=SPEED, booter=booter) as control:
        yield Hetzner(control)


@contextlib.contextmanager
def ucloud_cloud(booter: Booter) -> Iterator[UCloud]:
    with lab.lab(pace=SPEED, booter=booter) as account:
        yield UCloud(account)
