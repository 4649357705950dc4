"""The engines that a node can offer.  Each one's module is loaded only when it is wanted: a node that offers runsc
alone needs nothing that only the other one needs.
"""

from collections.abc import Mapping
from typing import Final

from gateway.wire.sandboxes import RuntimeName
from node_agent.runtime.base import SandboxRuntime
from node_agent.settings import NodeSettings
from node_agent.startup import Factory


def _runsc(settings: NodeSettings) -> SandboxRuntime:
    from node_agent.runtime.runsc import RunscRuntime

    return RunscRuntime(settings.root, tag=settings.tag, base_url=settings.docker_url)


def _docker(settings: NodeSettings) -> SandboxRuntime:
    from node_agent.runtime.docker_engine import DockerRuntime

    return DockerRuntime(settings.root, tag=settings.tag, base_url=settings.docker_url)


FACTORIES: Final[Mapping[RuntimeName, Factory]] = {"runsc": _runsc, "docker": _docker}
