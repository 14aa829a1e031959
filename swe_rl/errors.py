"""Typed errors shared by every stage: what failed decides what the run does next, so each kind has a class."""

from __future__ import annotations

from typing import Any


class SweRlError(Exception):
    """Base of all errors this package raises on purpose. The CLI prints the message as one line and exits 1."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders. Python's own way calls the class with the message alone: a subclass whose
        # constructor takes more could not be read on the other side, and its message would be lost.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[SweRlError], args: tuple[Any, ...], fields: dict[str, Any]) -> SweRlError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class UsageError(SweRlError):
    """The caller asked for something impossible (a flag, a file, a size). The CLI exits 2."""


class ConfigError(UsageError):
    """A setting is unknown or has a wrong value. The message names setting, value, allowed values and source."""


class DataError(SweRlError):
    """A dataset row, checkpoint or artifact cannot be used. The message names file, line and reason."""


class InfraError(SweRlError):
    """Nobody's fault: a sandbox, node or engine failed. The attempt is retried fresh, never scored (design rule 3)."""


class SandboxError(InfraError):
    """A sandbox could not be opened, died or was lost while in use."""


class SandboxUnavailable(SandboxError):
    """No sandbox could be allocated before the deadline (pool full, image missing, node down)."""


class EngineError(InfraError):
    """The policy engine did not answer, or answered nonsense, within its bounds."""


class DeadlineExceeded(InfraError):
    """A stage ran past the attempt's deadline. `stage` says which one."""

    def __init__(self, stage: str, seconds: float) -> None:
        super().__init__(f"stage '{stage}' ran past its deadline ({seconds:.1f} s)")
        self.stage = stage
        self.seconds = seconds
