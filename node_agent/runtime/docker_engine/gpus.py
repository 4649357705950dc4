"""GPUs of this host, as far as Docker can hand them to a container."""

import shutil
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from node_agent.errors import RuntimeFailure
from node_agent.host.machine import count_gpus

_HOOK: Final = "nvidia-container-runtime-hook"  # what Docker itself looks for before it offers --gpus


def count(proc: Path = Path("/proc")) -> int:
    """How many GPUs the host's NVIDIA driver has; 0 without driver or without NVIDIA's container toolkit."""
    return 0 if shutil.which(_HOOK) is None else count_gpus(proc)


def check(spec: SandboxSpec, have: int) -> None:
    """Refuses a spec that asks for more GPUs than there are.

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
