"""Root file systems of images: unpacked once each, read-only, shared by all sandboxes."""

import contextlib
import logging
import os
import shutil
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.limits import MIB
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import devices
from node_agent.host.disk import out_of_space, says_full
from node_agent.host.image_budget import ImageBudget, Kind
from node_agent.host.images import EngineImage, Images
from node_agent.host.process import CommandError, ended_within, kill_group, run, start

log = logging.getLogger(__name__)

_UNPACK_TIMEOUT: Final = 1800.0
_PARTIAL: Final = ".partial-"
_LOG: Final = ".log"


class RootFileSystems:
    """Unpacked images below one directory, one for each image id.

    Args:
        directory: where they lie.
        images: the engine that they come from.
        owner: marks what an interrupted unpacking leaves in the engine.
        budget: what images may take of the disk.
    """

    def __init__(self, directory: Path, images: Images, owner: str, budget: ImageBudget) -> None:
        self._budget = budget
        self._directory = directory
        self._images = images
        self._owner = owner
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def ensure(self, image: EngineImage) -> Path:
        """Return the unpacked root of ``image``; concurrent callers share one unpacking.

        Raises:
            RuntimeFailure: ``IMAGE_ERROR``, or ``DISK_FULL`` of the host.
        """
        target = self._target(image.id)
        if not target.is_dir():
            with self._lock_of(image.id):
                if not target.is_dir():
                    self._unpack_within(image, target)
        self._budget.touch(Kind.UNPACKED, image.id)
        return target

    def remove(self, image_id: str) -> bool:
        """Remove an unpacked root that no sandbox uses; return whether it is gone, which it is not while it is made."""
        lock = self._lock_of(image_id)
        if not lock.acquire(blocking=False):
            return False
        try:
            # In one step, so that a crash leaves nothing that looks whole.
            doomed = self._directory / f"{_PARTIAL}{uuid.uuid4().hex}"
            with contextlib.suppress(FileNotFoundError):
                self._target(image_id).rename(doomed)
                shutil.rmtree(doomed)
        except OSError as error:
            log.warning("unpacked image %s stays: %s", image_id, error)
            return False
        finally:
            lock.release()
        return True

    def sweep(self) -> list[str]:
        """Remove what an interrupted unpacking left, and return a sentence for each."""
        gone = self._images.sweep_exports(self._owner) if self._directory.is_dir() else []
        for partial in self._directory.glob(f"{_PARTIAL}*"):
            if partial.suffix == _LOG:
                partial.unlink()
                continue
            shutil.rmtree(partial)
            gone.append(f"half-unpacked image {partial}")
        return gone

    def _target(self, image_id: str) -> Path:
        return self._directory / image_id.removeprefix("sha256:")

    def _lock_of(self, image_id: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(image_id, threading.Lock())

    def _unpack_within(self, image: EngineImage, target: Path) -> None:
        """Unpack an image that counts from the begin, so that two at once do not take the same room."""
        self._budget.make_room(image.id, image.size_mb)
        try:
            self._budget.add(Kind.UNPACKED, image.id, image.size_mb)
            self._unpack(image, target)
        except (RuntimeFailure, OSError) as error:
            self._budget.forget(Kind.UNPACKED, image.id)
            if isinstance(error, RuntimeFailure):
                raise
            raise _failure(image, str(error), full=out_of_space(error)) from error

    def _unpack(self, image: EngineImage, target: Path) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        partial = self._directory / f"{_PARTIAL}{uuid.uuid4().hex}"
        partial.mkdir(mode=0o755)
        try:
            self._extract(image, partial)
            if node := next(devices.device_nodes(partial), None):
                raise devices.planted(image.id, f"/{node.relative_to(partial)}")
            devices.remove_hidden_nodes(partial)
            run(["sync", "--file-system", str(partial)], timeout=300)
            partial.rename(target)
        except (OSError, CommandError) as error:
            raise _failure(image, str(error), full=out_of_space(error)) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # gone already where the rename succeeded

    def _extract(self, image: EngineImage, directory: Path) -> None:
        """Feed the engine's export to tar, which keeps owners, modes, links and attributes and stays inside."""
        deadline = time.monotonic() + _UNPACK_TIMEOUT
        command = ["tar", "-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", str(directory)]
        with (directory.with_suffix(_LOG)).open("w+b") as log:
            log_path = Path(log.name)
            tar = start(command, stdin=subprocess.PIPE, stdout=log.fileno(), stderr=log.fileno())
            try:
                self._feed(image, tar, deadline)
                if not ended_within(tar, max(1.0, deadline - time.monotonic())):
                    raise _failure(image, f"unpacking took longer than {_UNPACK_TIMEOUT:.0f} s")
            finally:
                kill_group(tar)
                log_path.unlink()
            if tar.returncode != 0:
                log.seek(0)
                words = log.read(2000).decode(errors="replace").strip()
                # On a full disk tar's own words may find no room either.
                full = says_full(words) or not _has_room(directory)
                raise _failure(image, f"tar could not unpack it: {words or 'no room even to say why'}", full=full)

    def _feed(self, image: EngineImage, tar: "subprocess.Popen[bytes]", deadline: float) -> None:
        """Write the engine's export to tar until either ends."""
        stdin = tar.stdin
        if stdin is None:
            raise _failure(image, "tar has no stdin")
        try:
            with stdin:
                for block in self._images.export(image, self._owner):
                    if time.monotonic() > deadline:
                        raise _failure(image, f"unpacking took longer than {_UNPACK_TIMEOUT:.0f} s")
                    stdin.write(block)
        except BrokenPipeError:
            return  # tar ended early and writes why


def _has_room(directory: Path) -> bool:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize >= MIB and (status.f_files == 0 or status.f_favail > 0)


def _failure(image: EngineImage, problem: str, *, full: bool = False) -> RuntimeFailure:
    if full:
        sentence = f"image {image.id}: the node's disk is full: {problem}"
        return RuntimeFailure(ErrorCode.DISK_FULL, sentence, reason=DeathReason.DISK_FULL)
    return RuntimeFailure(ErrorCode.IMAGE_ERROR, f"image {image.id}: {problem}", reason=DeathReason.IMAGE_ERROR)
