"""GPUs of this host, as far as Docker can hand them to a container."""

import shutil
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from node_agent.runtime.base import RuntimeFailure

_DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_HOOK: Final = "nvidia-container-runtime-hook"  # what Docker itself looks for before it offers --gpus


def count(driver: Path = _DRIVER) -> int:
    """How many GPUs the host's NVIDIA driver has; 0 without driver or without NVIDIA's container toolkit."""
    if not driver.is_dir() or shutil.which(_HOOK) is None:
        return 0
    return len(list(driver.iterdir()))


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
