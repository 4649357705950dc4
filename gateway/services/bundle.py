"""The bundle directory: the node agent's wheels with their manifest, as ``sandboxes gateway bundle`` made them."""

import asyncio
import hashlib
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.errors import ApiError
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import SUMS, BundleFile, BundleManifest

MANIFEST: Final = "manifest.json"


def sums_of(files: list[BundleFile]) -> str:
    """Return the text of `SUMS` for these files."""
    return "".join(f"{item.sha256}  {item.file}\n" for item in files)


class BundleService:
    """Reads the directory anew whenever its manifest changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: tuple[tuple[int, int], BundleManifest] | None = None

    async def manifest(self) -> BundleManifest:
        """Return what the bundle holds.

        Raises:
            ApiError: ``NOT_FOUND``: there is no bundle, or it cannot be read.
        """
        return await asyncio.to_thread(self._manifest)

    async def path(self, name: str) -> Path:
        """Return where a file of the bundle lies.

        Raises:
            ApiError: ``NOT_FOUND``: the bundle has no such file, or its size is not the manifest's.
        """
        return await asyncio.to_thread(self._path, name)

    def _manifest(self) -> BundleManifest:
        path = self._directory / MANIFEST
        try:
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_ino)
            if self._kept is None or self._kept[0] != stamp:
                self._kept = (stamp, BundleManifest.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            raise _no_bundle(f"there is no bundle in {self._directory}") from None
        except (OSError, ValidationError) as error:
            raise _no_bundle(f"{path} cannot be read: {error}") from error
        return self._kept[1]

    def _path(self, name: str) -> Path:
        manifest = self._manifest()
        sums = sums_of(manifest.files)
        sizes = {item.file: item.size for item in manifest.files} | {SUMS: len(sums)}
        if name not in sizes:
            raise ApiError(ErrorCode.NOT_FOUND, f"the bundle has no file {name[:100]!r}; its manifest lists them all")
        path = self._directory / name
        try:
            whole = path.stat().st_size == sizes[name]
        except OSError:
            whole = False
        if not whole:
            raise _no_bundle(f"{name} in {self._directory} is not what the manifest says")
        return path


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_bundle(why: str) -> ApiError:
    return ApiError(ErrorCode.NOT_FOUND, f"{why}; make it on the gateway's machine with: sandboxes gateway bundle")
