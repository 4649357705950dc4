"""This node's containers, as Docker has them."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import requests
from docker.errors import APIError, NotFound

from gateway.wire.sandboxes import Isolation
from gateway.wire.states import DeathReason
from node_agent.host import cgroup
from node_agent.host.cgroup import Cgroup
from node_agent.host.process import how_ended, pinned, send
from node_agent.runtime.base import Death, EngineState
from node_agent.runtime.docker_engine import container_config, host_files
from node_agent.runtime.docker_engine.client import Api, calling

_END_TIMEOUT: Final = 15.0
_STATUS_WITHIN: Final = 2.0  # seconds; Docker tells of an end after the kernel has
_IN_PROGRESS: Final = 409
_KILLED: Final = 128 + signal.SIGKILL
_STATES: Final = {
    "running": EngineState.RUNNING,
    "paused": EngineState.PAUSED,
    "created": EngineState.CREATING,
}


class Containers:
    """Looks containers up by their labels and takes them away."""

    def __init__(self, api: Api, tag: str) -> None:
        self._api = api
        self._tag = tag
        self._group_tag = container_config.cgroup_tag(tag)

    def ids(self, sandbox_id: str) -> list[str]:
        """Return the containers of all generations of one sandbox."""
        return [entry["Id"] for entry in self._listed(f"{container_config.LABEL_ID}={sandbox_id}")]

    def all(self) -> dict[str, str]:
        """Return every container of this node: Docker's id and the sandbox's."""
        return {entry["Id"]: entry["Labels"].get(container_config.LABEL_ID, "") for entry in self._listed()}

    def inspect(self, sandbox_id: str, generation: int) -> dict[str, Any] | None:
        """Return the container of one incarnation; ``None`` when there is none.

        Raises:
            RuntimeFailure: the engine does not answer.
        """
        with calling(f"sandbox {sandbox_id}"):
            try:
                found: dict[str, Any] = self._api.client.inspect_container(self.name(sandbox_id, generation))
            except NotFound:
                return None
        return found if found["Config"]["Labels"].get(container_config.LABEL) == self._tag else None

    @contextlib.contextmanager
    def first_process(self, sandbox_id: str, generation: int) -> Iterator[int | None]:
        """Yield a pidfd of one incarnation's first process, under gVisor of its kernel; ``None`` where none runs.

        Raises:
            RuntimeFailure: the engine does not answer.
        """
        inspected = self.inspect(sandbox_id, generation)
        pid = 0 if inspected is None else inspected["State"]["Pid"]
        if inspected is None or not pid:
            yield None
            return
        with pinned(pid, partial(_is_of, pid, inspected["Id"])) as handle:
            yield handle

    def name(self, sandbox_id: str, generation: int) -> str:
        """Return the name of one incarnation's container, and of its network."""
        return f"sandbox-{self._tag}-{sandbox_id}-{generation}"

    def remove(self, container: str) -> None:
        """End the container and remove it, in whatever state it is.  Idempotent.

        Raises:
            RuntimeFailure: the engine does not do it.
        """
        with calling(f"container {container[:12]}"):
            try:
                inspected = self._api.client.inspect_container(container)
                self.end(inspected)
                # Docker must find its own directory when it removes it, not the volume.
                host_files.unmount_layer(host_files.layer_directory(inspected))
                self._api.client.remove_container(container, force=True, v=True)
            except NotFound:
                pass
            except APIError as error:
                if error.status_code != _IN_PROGRESS:
                    raise
                with contextlib.suppress(NotFound):  # somebody else removes it
                    self._api.client.wait(container, timeout=_END_TIMEOUT, condition="removed")
        for group in cgroup.names(self._group_tag):
            self._clear_group(f"{group}/{container}")

    def group(self, sandbox_id: str, generation: int) -> Cgroup:
        """Return the group of one incarnation, which holds its container's and stays when that is gone."""
        return Cgroup(self._group_tag, self.name(sandbox_id, generation))

    def clear_groups(self, sandbox_id: str) -> None:
        """Remove the groups of all generations of one sandbox.  Idempotent."""
        pattern = re.compile(re.escape(self.name(sandbox_id, 0)[:-1]) + "[0-9]+")
        for group in filter(pattern.fullmatch, cgroup.names(self._group_tag)):
            self._clear_group(group)

    def sweep_groups(self) -> list[str]:
        """Remove the node's cgroups that no container has, and return a sentence for each."""
        known = {name.removeprefix("/") for entry in self._listed() for name in entry["Names"]}
        gone = [f"cgroup {name}" for name in cgroup.names(self._group_tag) - known if self._clear_group(name)]
        if not known and cgroup.remove_parent(self._group_tag):
            gone.append(f"cgroup {container_config.cgroup_parent(self._tag)}")
        return gone

    def _clear_group(self, name: str) -> bool:
        """Remove a group with those inside, which runsc leaves behind when it was killed, or had an exec."""
        group = Cgroup(self._group_tag, name)
        for inner in group.children():
            self._clear_group(f"{name}/{inner}")
        group.kill()
        return group.remove()

    def end(self, inspected: dict[str, Any]) -> None:
        """End the processes of a container.

        Raises:
            DockerException, requests.RequestException: the engine does not say that they have ended.
        """
        container, pid = inspected["Id"], inspected["State"]["Pid"]
        if not pid:
            return
        with pinned(pid, lambda: _is_of(pid, container)) as handle:
            if inspected["State"]["Paused"]:
                with contextlib.suppress(APIError):  # gVisor answers a kill only after a while when it is paused
                    self._api.client.unpause(container)
            try:
                self._api.client.kill(container)
                self._api.client.wait(container, timeout=_END_TIMEOUT, condition="not-running")
            except (APIError, requests.RequestException):
                # It has ended by itself, or it hangs and does not answer the engine: its process on the host always
                # does.
                if handle is not None:
                    send(handle, signal.SIGKILL)
                # An engine whose containerd died meanwhile may never hear of the end; it removes the container all the
                # same.
                with contextlib.suppress(requests.RequestException):
                    self._api.client.wait(container, timeout=_END_TIMEOUT, condition="not-running")

    def _listed(self, *labels: str) -> list[dict[str, Any]]:
        with calling("containers"):
            found: list[dict[str, Any]] = self._api.client.containers(
                all=True, filters={"label": [f"{container_config.LABEL}={self._tag}", *labels]}
            )
        return found


def _is_of(pid: int, container: str) -> bool:
    """Return whether the host's process of that number is in the container's control group."""
    try:
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:  # it has ended
        return False


def state(inspected: dict[str, Any]) -> EngineState:
    """Return the port's word for Docker's."""
    return _STATES.get(inspected["State"]["Status"], EngineState.DEAD)


def started_at(inspected: dict[str, Any]) -> datetime | None:
    """Return when its first process began; ``None`` when it never did."""
    return _time(inspected["State"]["StartedAt"])


def death(inspected: dict[str, Any], isolation: Isolation) -> Death:
    """Return how an ended container ended."""
    now = inspected["State"]
    code: int = now["ExitCode"]
    # Docker notes any OOM kill inside.  With gVisor it hits the whole sandbox; with runc it may have hit a child only.
    if now["OOMKilled"] and (isolation == "gvisor" or code == _KILLED):
        reason, detail = DeathReason.OOM, "its processes needed more memory than memory_mb"
    else:
        reason, detail = DeathReason.EXITED, f"its first process ended with exit code {code}"
    return Death(reason, code, detail, _time(now["FinishedAt"]) or datetime.now(UTC))


def was_killed(kernel: int | None) -> bool:
    """Return whether gVisor's kernel ended by SIGKILL; one that ends with its first process exits by itself.

    Linux tells from 6.15 on.  Before that it is taken for the end of the first process.

    Args:
        kernel: its pidfd, from before its end.
    """
    status = None if kernel is None else how_ended(kernel, _STATUS_WITHIN)
    return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def killed(death: Death) -> Death:
    """Return the end of a sandbox whose kernel was killed, by what Docker made of it."""
    detail = "its engine was killed on the node, from outside, by signal 9; create it again or restart it"
    return replace(death, reason=DeathReason.EVICTED, detail=detail)


def taken_away() -> Death:
    """Return the end of a sandbox whose container somebody else removed."""
    return Death(
        DeathReason.EVICTED, None, "its container was removed from Docker, not by this node", datetime.now(UTC)
    )


def _time(text: str) -> datetime | None:
    """Read a time: Docker writes nanoseconds, and the year 1 where nothing happened yet."""
    if not text or text.startswith("0001-"):
        return None
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{rest[:6]:0<6}+00:00")
