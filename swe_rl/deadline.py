"""One deadline per attempt, split over its stages: every timeout is derived from it (design rule 4)."""

from __future__ import annotations

import time

from swe_rl.errors import DeadlineExceeded


class Deadline:
    """A point on the monotonic clock. `remaining()` never goes below zero; `sub()` makes a nearer one."""

    def __init__(self, seconds: float) -> None:
        self._started = time.monotonic()
        self.seconds = float(seconds)

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def remaining(self) -> float:
        return max(0.0, self.seconds - self.elapsed())

    def expired(self) -> bool:
        return self.remaining() <= 0.0

    def bound(self, seconds: float) -> float:
        """The smaller of `seconds` and what is left: the timeout to give to a single step."""
        return min(float(seconds), self.remaining())

    def sub(self, seconds: float) -> Deadline:
        """A deadline for one stage that can never outlive this one."""
        return Deadline(self.bound(seconds))

    def check(self, stage: str) -> None:
        """Raise `DeadlineExceeded` for `stage` if no time is left."""
        if self.expired():
            raise DeadlineExceeded(stage, self.seconds)
