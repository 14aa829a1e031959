"""What the pool answers when it cannot do what it was asked: one kind per remedy, each with its HTTP status."""

from __future__ import annotations

from typing import Any

STATUS = {
    "bad_request": 400,
    "unauthorized": 401,
    "lease_unknown": 404,
    "image_missing": 404,
    "node_unknown": 404,
    "not_found": 404,
    "key_conflict": 409,
    "node_busy": 409,
    "lease_gone": 410,
    "too_large": 413,
    "node_error": 502,
    "node_unreachable": 502,
    "unavailable": 503,
    "stopping": 503,
}
RETRYABLE = {"node_unreachable", "stopping"}  # the same request with the same key may succeed soon


class PoolFault(Exception):
    """A refusal with a kind of `STATUS`; becomes the JSON body `{"error": {"kind", "message", "retry"}}`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        return STATUS[self.kind]

    def body(self) -> dict[str, Any]:
        return {"error": {"kind": self.kind, "message": str(self), "retry": self.kind in RETRYABLE}}
