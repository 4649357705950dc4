"""What this host's Docker engine can do, found out with a throwaway sandbox under each isolation, and its GPUs."""

import io
import shutil
import tarfile
import uuid
from pathlib import Path
from typing import Any, Final

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import Isolation, SandboxSpec
from node_agent.errors import RuntimeFailure
from node_agent.host import programs
from node_agent.host.machine import list_gpus
from node_agent.host.process import CommandError
from node_agent.runtime.base import ExecCommand, Order, RuntimeFacts, SandboxRuntime
from node_agent.runtime.docker_engine import container_config
from node_agent.runtime.docker_engine.client import Api, calling

_ISOLATIONS: Final[tuple[Isolation, ...]] = ("gvisor", "runc")
_DISK_MB: Final = 16
_SYSTEMD_GROUPS: Final = (
    "Docker makes its control groups through systemd, so no devices control group of the node holds its containers, and"
    " only the refusal of images with device nodes keeps gVisor from the host's, and the usage of tenants lacks"
    " processor time and memory; start the engine with"
    " --exec-opt native.cgroupdriver=cgroupfs, as `sandboxes node engine` does"
)
_TOO_MUCH: Final = "head -c 33554432 /dev/zero >/filled"


class DockerProbe:
    """Finds out what an engine can do."""

    def __init__(self, runtime: SandboxRuntime, api: Api, tag: str, tools: Path) -> None:
        self._runtime = runtime
        self._api = api
        self._tools = tools
        self._image = f"sandbox-probe-{tag}:1"

    def run(self) -> RuntimeFacts:
        """Try the engine and return its facts.

        Raises:
            RuntimeFailure: no isolation works, or the engine does not answer.
        """
        with calling("probe of the Docker engine"):
            info: dict[str, Any] = self._api.client.info()
        problems = self._problems(info)
        works = tuple(name for name in _ISOLATIONS if name not in problems)
        if not works:
            raise RuntimeFailure(ErrorCode.INTERNAL, "; ".join(problems.values()))
        return RuntimeFacts(
            name="docker",
            version=info["ServerVersion"],
            isolations=works,
            pause=True,
            checkpoint=False,
            gpus=count_usable_gpus() > 0,
            notes=(*problems.values(), *(() if self._api.uses_cgroupfs else (_SYSTEMD_GROUPS,))),
        )

    def _problems(self, info: dict[str, Any]) -> dict[Isolation, str]:
        """Return a sentence for each isolation that does not work here."""
        if info["Driver"] != "overlay2":
            sentence = f"Docker uses the storage driver {info['Driver']}; disk_mb can be enforced with overlay2 only"
            return dict.fromkeys(_ISOLATIONS, sentence)
        self._import_image()
        try:
            return {name: problem for name in _ISOLATIONS if (problem := self._try(name, info)) is not None}
        finally:
            with calling("probe of the Docker engine"):
                self._api.client.remove_image(self._image, force=True)

    def _try(self, isolation: Isolation, info: dict[str, Any]) -> str | None:
        runtime = container_config.RUNTIMES[isolation]
        if runtime not in info["Runtimes"]:
            return f"Docker has no runtime {runtime}; start the engine with `sandboxes node engine`, or register it"
        order = self._order(isolation)
        try:
            self._runtime.create(order)
            return self._fill(order)
        except RuntimeFailure as failure:
            return f"isolation {isolation} does not work with Docker here: {failure.message}"
        finally:
            self._runtime.delete(order.sandbox_id)

    def _fill(self, order: Order) -> str | None:
        """Write more than the sandbox's disk holds, and return what is wrong with an engine that takes it."""
        process = self._runtime.exec(order.sandbox_id, ExecCommand((programs.BUSYBOX_INSIDE, "sh", "-c", _TOO_MUCH)))
        try:
            while process.read() is not None:
                pass
            taken = process.wait().code == 0
        finally:
            process.close()
        if not taken:
            return None
        return (
            f"Docker's runtime for {order.spec.isolation} does not bound the disk;"
            " register runsc with --overlay2=none, as `sandboxes node engine` does"
        )

    def _order(self, isolation: Isolation) -> Order:
        spec = SandboxSpec.model_validate(
            {
                "id": f"probe-{uuid.uuid4().hex[:12]}",
                "image": self._image,
                "command": ["/busybox", "sleep", "600"],
                "memory_mb": 256,
                "disk_mb": _DISK_MB,
                "isolation": isolation,
                "security": {"user": "0:0"},
            }
        )
        return Order(spec.id, 1, f"probe-{uuid.uuid4().hex}", spec, spec.sha256())

    def _import_image(self) -> None:
        try:
            program = programs.copy_busybox(self._tools).read_bytes()
        except CommandError as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, str(error)) from error
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            entry = tarfile.TarInfo("busybox")
            entry.size, entry.mode = len(program), 0o755
            tar.addfile(entry, io.BytesIO(program))
        repository, _, tag = self._image.partition(":")
        with calling("probe of the Docker engine"):
            self._api.client.import_image_from_data(layer.getvalue(), repository=repository, tag=tag)


_HOOK: Final = "nvidia-container-runtime-hook"  # what Docker itself looks for before it offers --gpus


def count_usable_gpus(proc: Path = Path("/proc")) -> int:
    """Count the GPUs of the host's NVIDIA driver; 0 without driver or without NVIDIA's container toolkit."""
    return 0 if shutil.which(_HOOK) is None else len(list_gpus(proc))


def check_user_namespaces(api: Api, *, allow: bool) -> None:
    """Refuse runc where root of a container is root of the host.

    Args:
        api: of the engine.
        allow: whether the operator takes that.

    Raises:
        RuntimeFailure: ``UNSUPPORTED``.
    """
    if allow or api.has_user_namespaces:
        return
    raise RuntimeFailure(
        ErrorCode.UNSUPPORTED,
        "the Docker engine gives containers no user namespaces, so root in a container under runc is root of the host;"
        " use isolation gvisor, or start the node agent with allow_runc_without_user_namespaces",
    )


def check_gpus(spec: SandboxSpec, have: int) -> None:
    """Refuse a spec that asks for more GPUs than there are.

    Raises:
        RuntimeFailure: ``CAPACITY``.
    """
    if spec.gpu_count <= have:
        return
    cause = (
        "it has none that Docker can pass on (NVIDIA driver and container toolkit)" if have == 0 else f"it has {have}"
    )
    raise RuntimeFailure(
        ErrorCode.CAPACITY, f"sandbox {spec.id} asks for gpus={spec.gpus!r}, and this node cannot give them: {cause}"
    )
