"""What can go wrong with a container, told apart by what the caller should do next."""

from __future__ import annotations

from swe_rl.errors import SandboxError, SandboxUnavailable, UsageError


class EngineUnavailable(SandboxUnavailable):
    """The container engine does not answer."""


class EngineRefused(SandboxError):
    """The engine answered with an error that has no kind of its own here. `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ImageMissing(SandboxUnavailable):
    """The image is not on this node and cannot be had from a registry."""


class ImagePulling(SandboxUnavailable):
    """The image is still being pulled; the same request may succeed later."""


class ImageUnusable(SandboxUnavailable):
    """The image lacks what the supervisor needs (bash and the usual core tools)."""


class ContainerGone(SandboxError):
    """There is no such container here (any more)."""


class ContainerBusy(SandboxError):
    """Another command of the container did not end before this one's time was up. Nothing was run."""


class CommandInterrupted(SandboxError):
    """The supervisor, the container or the server ended while the command ran: its outcome is unknown."""


class LimitRefused(UsageError):
    """The request asks for more than this server allows."""


class FileMissing(SandboxError):
    """There is no such file in the container."""


class FileTooLarge(SandboxError):
    """The file is larger than the caller allows."""


class DiskFull(SandboxError):
    """The container's disk or memory file system, or its quota, has no room for the file."""
