"""What the attempts are doing now: counts by stage and rewards so far, for the driver's progress bar."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any


class StageCounts:
    """Attempts in each stage ("allocate", "agent", "collect", "grade"), and what ended since `start`."""

    def __init__(self) -> None:
        self._stages: Counter[str] = Counter()
        self.start(0)

    def start(self, expected: int) -> None:
        """Begin a new step or evaluation of `expected` attempts (more may come)."""
        self.expected = expected
        self.finished = 0
        self.reward_sum = 0.0
        self.counted = 0
        self.verdicts: Counter[str] = Counter()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count one attempt in stage `name` while the block runs."""
        self._stages[name] += 1
        try:
            yield
        finally:
            self._stages[name] -= 1

    def finish(self, reward: float | None, verdict: str) -> None:
        """One attempt ended; `reward` None = it does not count (infra_error)."""
        self.finished += 1
        self.verdicts[verdict] += 1
        if reward is not None:
            self.counted += 1
            self.reward_sum += reward

    def snapshot(self) -> dict[str, Any]:
        """A plain copy for another process."""
        return {
            "stages": {name: count for name, count in self._stages.items() if count > 0},
            "expected": max(self.expected, self.finished),
            "finished": self.finished,
            "reward_mean": self.reward_sum / self.counted if self.counted else None,
            "verdicts": dict(self.verdicts),
        }
