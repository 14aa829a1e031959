"""Resolve rates with honest intervals: attempts at one task are not independent, so tasks are what is resampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True)
class Rate:
    """Share of resolved attempts, its 95% interval and the number of attempts and tasks behind it."""

    resolve_rate: float
    ci95: tuple[float, float]
    n: int
    tasks: int

    def to_dict(self) -> dict[str, Any]:
        return {"resolve_rate": self.resolve_rate, "ci95": list(self.ci95), "n": self.n, "tasks": self.tasks}

    def __str__(self) -> str:
        return f"{100 * self.resolve_rate:.1f}% [{100 * self.ci95[0]:.1f}, {100 * self.ci95[1]:.1f}] (n={self.n})"


def resolve_rate(attempts: Iterable[tuple[str, bool]], *, seed: int = 0) -> Rate:
    """Rate of (task id, resolved) pairs; percentile bootstrap over tasks (Efron 1979, cluster form), seeded.

    Where every resample is alike (all or none resolved) the percentile interval has no width, so the bound of the rule of
    three (3 / tasks; Hanley and Lippman-Hand 1983) takes its place.
    """
    by_task: dict[str, list[bool]] = defaultdict(list)
    for task, resolved in attempts:
        by_task[task].append(bool(resolved))
    if not by_task:
        return Rate(0.0, (0.0, 1.0), 0, 0)
    counts = np.array([len(v) for v in by_task.values()], dtype=np.float64)
    wins = np.array([sum(v) for v in by_task.values()], dtype=np.float64)
    rate = float(wins.sum() / counts.sum())
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(counts), size=(RESAMPLES, len(counts)))
    rates = wins[picks].sum(axis=1) / counts[picks].sum(axis=1)
    low, high = (float(x) for x in np.percentile(rates, [2.5, 97.5]))
    if low == high:
        margin = min(1.0, 3.0 / len(counts))
        low, high = max(0.0, low - margin), min(1.0, high + margin)
    return Rate(rate, (low, high), int(counts.sum()), len(counts))


def pass_at_k(resolved: int, attempts: int, k: int) -> float:
    """Unbiased pass@k of one task: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    if not 0 <= resolved <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"need 0 <= resolved <= attempts and 1 <= k <= attempts, got {resolved}, {attempts}, {k}")
    if attempts - resolved < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(attempts - resolved + 1, attempts + 1)))
