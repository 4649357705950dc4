"""Clients that create, exec and delete, and write down whatever a user would call wrong."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ucloud_sandboxes_sdk import (
    ExecLostError,
    Image,
    NodeUnreachableError,
    SandboxApiError,
    SandboxClient,
    SandboxHandle,
    SandboxSpec,
    TransportError,
)

PATIENCE: Final = 180.0  # seconds for one step, in which the daemons come back several times
PAUSE: Final = 0.2
# Create and delete go by the id that the client chose, so both may be repeated after a connection that broke.
BROKEN: Final = (TransportError,)
MAYBE_RUN: Final = (ExecLostError, NodeUnreachableError, TransportError)
START: Final = "echo started >> /workspace/starts; exec sleep 600"

Got = TypeVar("Got")


@dataclass
class Record:
    """What happened to the sandboxes of a run, written by several threads."""

    done: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    retries: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def retried(self) -> None:
        with self.lock:
            self.retries += 1


def patiently(call: Callable[[], Got], record: Record, *, unknown: tuple[type[SandboxApiError], ...] = BROKEN) -> Got:
    """Repeats a call as long as its refusals say that this can help.

    Args:
        call: what to do.
        record: counts the repetitions.
        unknown: errors that leave open what happened, for a call that may happen twice.

    Raises:
        SandboxApiError: a refusal for good, or no success within `PATIENCE`.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except SandboxApiError as error:
            if not (error.retryable or isinstance(error, unknown)) or time.monotonic() > end:
                raise
            record.retried()
            time.sleep(error.retry_after_seconds or PAUSE)


def cycle(client: SandboxClient, sandbox_id: str, image: str, record: Record) -> None:
    """One sandbox from create to delete; a line in ``record.wrong`` when anything but success came of it."""
    spec = SandboxSpec(
        id=sandbox_id,
        image=Image.from_registry(image),
        command=["sh", "-c", START],
        cpus=0.1,
        memory_mb=64,
        disk_mb=64,
    )
    try:
        sandbox = patiently(lambda: client.create_sandbox(spec), record)
        starts = patiently(lambda: _starts(sandbox), record, unknown=MAYBE_RUN)
        if starts != "started\n":
            record.wrong.append(f"{sandbox_id} was started {starts.count('started')} times")
        patiently(sandbox.delete, record)
        left = patiently(lambda: client.get_sandbox(sandbox_id), record)
        if left is not None and left["state"] not in {"deleting", "deleted"}:
            record.wrong.append(f"{sandbox_id} is {left['state']} after its delete")
    except SandboxApiError as error:
        record.wrong.append(f"{sandbox_id}: {type(error).__name__}: {error}")
        return
    record.done.append(sandbox_id)


def _starts(sandbox: SandboxHandle) -> str:
    # The first process may not have come to its first line yet.
    command = "until [ -s /workspace/starts ]; do sleep 0.05; done; cat /workspace/starts"
    return sandbox.exec(["sh", "-c", command], timeout_seconds=30).stdout
