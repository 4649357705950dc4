"""Run commands and move files in isolated Linux sandboxes.

::

    from ucloud_sandboxes_sdk import Image, SandboxClient

    client = SandboxClient.from_env()
    with client.create_sandbox(image=Image.from_registry("python:3.12-slim"), command=["sleep", "300"]) as sandbox:
        print(sandbox.exec(["python", "-c", "print('hello')"], timeout_seconds=30).stdout)
"""

from .client import SandboxClient, sandbox_auth_headers
from .create import CreateProgress
from .errors import (
    AuthenticationError,
    BusyError,
    ConflictError,
    CreateInProgressError,
    DeadlineExceededError,
    DiskFullError,
    ExecEventHistoryLostError,
    ExecLostError,
    FileNotFoundInSandboxError,
    ImageError,
    InvalidRequestError,
    IsADirectoryInSandboxError,
    NeverFitsError,
    NodeUnreachableError,
    NoRoomError,
    NotADirectoryInSandboxError,
    NotFoundError,
    PermissionDeniedInSandboxError,
    SandboxApiError,
    SandboxFileError,
    SandboxNotRunningError,
    ServiceTimeoutError,
    SpecConflictError,
    StartError,
    StdinClosedError,
    TransportError,
)
from .events import event_bytes
from .exec import ExecHandle, ExecOptions
from .handle import SandboxHandle
from .results import SandboxExecResult, SandboxLogChunk, SandboxUsage
from .specs import Image, SandboxFilesystemSpec, SandboxSecuritySpec, SandboxSpec
from .version import __version__

__all__ = [
    "AuthenticationError",
    "BusyError",
    "ConflictError",
    "CreateInProgressError",
    "CreateProgress",
    "DeadlineExceededError",
    "DiskFullError",
    "ExecEventHistoryLostError",
    "ExecHandle",
    "ExecLostError",
    "ExecOptions",
    "FileNotFoundInSandboxError",
    "Image",
    "ImageError",
    "InvalidRequestError",
    "IsADirectoryInSandboxError",
    "NeverFitsError",
    "NoRoomError",
    "NodeUnreachableError",
    "NotADirectoryInSandboxError",
    "NotFoundError",
    "PermissionDeniedInSandboxError",
    "SandboxApiError",
    "SandboxClient",
    "SandboxExecResult",
    "SandboxFileError",
    "SandboxFilesystemSpec",
    "SandboxHandle",
    "SandboxLogChunk",
    "SandboxNotRunningError",
    "SandboxSecuritySpec",
    "SandboxSpec",
    "SandboxUsage",
    "ServiceTimeoutError",
    "SpecConflictError",
    "StartError",
    "StdinClosedError",
    "TransportError",
    "__version__",
    "event_bytes",
    "sandbox_auth_headers",
]
