"""What the exec server answers when it cannot do what it was asked: one kind per remedy, each with its HTTP status."""

from __future__ import annotations

from typing import Any

from swe_rl.errors import InfraError, UsageError
from swe_rl.sandbox.container import errors

STATUS = {
    "bad_request": 400,
    "unauthorized": 401,
    "container_gone": 404,
    "image_missing": 404,
    "not_found": 404,
    "key_conflict": 409,
    "name_conflict": 409,
    "container_busy": 409,
    "too_large": 413,
    "image_unusable": 422,
    "outcome_unknown": 500,
    "engine_error": 502,
    "engine_unavailable": 503,
    "image_pulling": 503,
}
RETRYABLE = {"engine_unavailable", "image_pulling", "container_busy"}
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
    (UsageError, "bad_request"),
    (InfraError, "engine_error"),
]


class ExecFault(Exception):
    """A refusal with a kind of `STATUS`; becomes the JSON body `{"error": {"kind", "message", "retry"}}`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        return STATUS[self.kind]

    def body(self) -> dict[str, Any]:
        return {"error": {"kind": self.kind, "message": str(self), "retry": self.kind in RETRYABLE}}


def fault_of(error: Exception) -> ExecFault | None:
    """The fault that a typed error means; None for an error that nobody raised on purpose."""
    if isinstance(error, ExecFault):
        return error
    if isinstance(error, errors.EngineRefused) and "already in use by container" in str(error):
        return ExecFault("name_conflict", str(error))
    return next((ExecFault(kind, str(error)) for known, kind in KINDS if isinstance(error, known)), None)
