"""What a server answers when it cannot do what it was asked: one kind per remedy, each with its HTTP status."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar


class ServerFault(Exception):
    """A refusal with a kind of `STATUS`; becomes the JSON body `{"ok": false, "error": {"kind", "message", "retry"}}`.

    Each server has a subclass with the kinds of its own.
    """

    SERVER: ClassVar[str] = ""  # the name that metrics, logs and messages carry
    STATUS: ClassVar[dict[str, int]] = {
        "bad_request": 400,
        "unauthorized": 401,
        "not_found": 404,
        "method_not_allowed": 405,
        "key_conflict": 409,
        "too_large": 413,
        "internal": 500,
    }
    RETRYABLE: ClassVar[Collection[str]] = ()  # the same request with the same key may succeed soon

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        return self.STATUS[self.kind]

    def body(self) -> dict[str, Any]:
        return {"ok": False, "error": {"kind": self.kind, "message": str(self), "retry": self.kind in self.RETRYABLE}}

    @classmethod
    def of(cls, error: Exception) -> ServerFault | None:
        """The fault that an error means; None for an error that nobody raised on purpose."""
        return error if isinstance(error, ServerFault) else None
