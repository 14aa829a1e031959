"""What the attempts are doing now: counts by stage and rewards so far, for the driver's progress bar."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

OVERLAP = ("agent", "grade")  # these should run at once: an attempt is graded while others are sampled


class StageCounts:
    """Attempts in each stage ("allocate", "agent", "collect", "grade"), and what ended since `start`."""

    def __init__(self) -> None:
        self._stages: Counter[str] = Counter()
        self._changed = time.monotonic()
        self.start(0)

    def start(self, expected: int) -> None:
        """Begin a new step or evaluation of `expected` attempts (more may come)."""
        self.expected = expected
        self.finished = 0
        self.reward_sum = 0.0
        self.counted = 0
        self.verdicts: Counter[str] = Counter()
        self._busy: Counter[str] = Counter()
        self._changed = time.monotonic()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count one attempt in stage `name` while the block runs."""
        self._count(name, 1)
        try:
            yield
        finally:
            self._count(name, -1)

    def _count(self, name: str, change: int) -> None:
        now = time.monotonic()
        running = [stage for stage, count in self._stages.items() if count > 0]
        if all(stage in running for stage in OVERLAP):
            running.append(" and ".join(OVERLAP))
        for stage in running:
            self._busy[stage] += now - self._changed  # type: ignore[assignment]
        self._changed = now
        self._stages[name] += change

    def busy_seconds(self) -> dict[str, float]:
        """Wall seconds since `start` in which at least one attempt was in a stage, and in both stages of `OVERLAP`."""
        return dict(self._busy)

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
