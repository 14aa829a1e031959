"""What the exec server answers when it cannot do what it was asked: from typed errors to kinds."""

from __future__ import annotations

from swe_rl.errors import InfraError, SweRlError
from swe_rl.sandbox.container import errors
from swe_rl.sandbox.server.faults import ServerFault

KINDS: list[tuple[type[Exception], str]] = [
    (errors.ContainerGone, "container_gone"),
    (errors.ContainerBusy, "container_busy"),
    (errors.CommandInterrupted, "outcome_unknown"),
    (errors.ImageMissing, "image_missing"),
    (errors.ImagePulling, "image_pulling"),
    (errors.ImageUnusable, "image_unusable"),
    (errors.EngineUnavailable, "engine_unavailable"),
    (errors.FileMissing, "not_found"),
    (errors.FileTooLarge, "too_large"),
    (errors.DiskFull, "disk_full"),
    (InfraError, "engine_error"),
    (SweRlError, "bad_request"),  # a name, a path, a limit, a task's own patch: what was asked for makes no sense
]


class ExecFault(ServerFault):
    """The kinds that only an exec server knows."""

    SERVER = "exec"
    STATUS = ServerFault.STATUS | {
        "container_gone": 404,
        "image_missing": 404,
        "name_conflict": 409,
        "container_busy": 409,
        "image_unusable": 422,
        "diff_failed": 422,
        "outcome_unknown": 500,
        "engine_error": 502,
        "engine_unavailable": 503,
        "image_pulling": 503,
        "stopping": 503,
        "timed_out": 504,
        "disk_full": 507,
    }
    RETRYABLE = ("engine_unavailable", "image_pulling", "container_busy", "stopping")

    @classmethod
    def of(cls, error: Exception) -> ServerFault | None:
        """The fault that a typed error means; None for an error that nobody raised on purpose."""
        if isinstance(error, ServerFault):
            return error
        if (
            isinstance(error, errors.EngineRefused)
            and "container name" in str(error)
            and "already in use" in str(error)
        ):
            return cls("name_conflict", str(error))
        return next((cls(kind, str(error)) for known, kind in KINDS if isinstance(error, known)), None)
