"""A number that moves slowly while training goes well (entropy, log-prob difference), and the band round its running mean."""

from __future__ import annotations

import math
from typing import Any


class BandWatch:
    """Feed it every step's value. The mean is geometric, for these numbers change by factors; values outside do not move it."""

    def __init__(self, *, factor: float, window: int, floor: float, upper_only: bool = False) -> None:
        self.factor, self.window, self.floor, self.upper_only = factor, window, floor, upper_only
        self.outside = 0  # steps in a row
        self.value: float | None = None  # the last one
        self._log_mean, self._count = 0.0, 0

    @property
    def low(self) -> float | None:
        if not self._count or self.upper_only:
            return None
        return math.exp(self._log_mean) / self.factor

    @property
    def high(self) -> float | None:
        return math.exp(self._log_mean) * self.factor if self._count else None

    def lost(self, patience: int) -> bool:
        """Whether the number was outside for `patience` steps in a row, or is not finite."""
        return self.outside >= patience or (self.value is not None and not math.isfinite(self.value))

    def far(self) -> bool:
        """Whether the last value is outside a band with the square of the factor: one step is enough to believe that."""
        if not self.outside or self.value is None:
            return False
        distance = math.log(max(self.value, self.floor)) - self._log_mean if math.isfinite(self.value) else math.inf
        return abs(distance) > 2.0 * math.log(self.factor)

    def add(self, value: float) -> None:
        """One step's value; below `floor` it counts as `floor`. A value that is not finite is outside."""
        self.value = value
        clamped = max(value, self.floor) if math.isfinite(value) else math.inf
        below = self.low is not None and clamped < self.low
        above = (self.high is not None and clamped > self.high) or clamped == math.inf
        if below or above:
            self.outside += 1
            return
        self.outside = 0
        self._count = min(self._count + 1, self.window)
        self._log_mean += (math.log(clamped) - self._log_mean) / self._count

    def state_dict(self) -> dict[str, Any]:
        return {"log_mean": self._log_mean, "count": self._count, "outside": self.outside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._log_mean, self._count, self.outside = state["log_mean"], state["count"], state["outside"]
        self.value = None
