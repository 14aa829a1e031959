"""Has the resolve rate fallen under a share of its running mean? A sequential test, because one step's rate is mostly noise.

Attempts at one task often all succeed or all fail, so that 96 attempts of a step can be as noisy as 12 coin flips: the test
counts groups. With m the mean and f the factor, it weighs p0 = m sqrt(f) against p1 = m f sqrt(f); m f is about half-way.
A group of rate r adds r log(p1/p0) + (1 - r) log((1 - p1)/(1 - p0)) to the evidence, which never falls below 0 (CUSUM: Page
1954). The exponential of that term has a mean of at most 1 for any distribution of r in [0, 1] with mean p0 or more (it is
convex in r, coins are the worst case). So while the rate stays above m sqrt(f), the mean time to a false alarm is at least
exp(threshold) steps (Lorden 1971), whatever the noise; at a constant rate it is far longer. For m the lower end of the mean's
own confidence interval is taken: a mean of few groups proves little.
"""

from __future__ import annotations

import math
from typing import Any

CONFIDENCE_Z = 1.5  # standard errors by which the mean may be overestimated


class AccuracyWatch:
    """Feed it every step's rate; `collapsed` is the verdict. The mean stands still while there is evidence against it."""

    def __init__(self, *, factor: float, false_alarm_steps: float, window: int) -> None:
        self.factor = factor
        self.threshold = math.log(false_alarm_steps)
        self.window = window
        self.evidence = 0.0  # log likelihood ratio since the suspicion began
        self._mean_resolved, self._mean_groups = 0.0, 0.0  # what the mean is made of, older steps counting less
        self._resolved, self._groups, self._steps = 0.0, 0.0, 0  # since the suspicion began

    @property
    def mean(self) -> float | None:
        """The running mean of the rate; None before the first step."""
        return self._mean_resolved / self._mean_groups if self._mean_groups else None

    @property
    def rate(self) -> float | None:
        """The rate since the suspicion began; None without one."""
        return self._resolved / self._groups if self._groups else None

    @property
    def low(self) -> float:
        """What the rate must not fall under."""
        return self.factor * (self.mean or 0.0)

    def add(self, rate: float, groups: int) -> None:
        """One step: the share of all its attempts that were resolved, and the number of tasks that were attempted."""
        if groups < 1:
            return
        self._resolved, self._groups, self._steps = (
            self._resolved + rate * groups,
            self._groups + groups,
            self._steps + 1,
        )
        self.evidence = max(0.0, self.evidence + groups * self._likelihood_ratio(rate))
        if self.evidence == 0.0:
            self._absorb()

    def convinced(self, threshold: float | None = None) -> bool:
        """Whether the rate is under its bound and the evidence over `threshold` (default: that of the settings)."""
        enough = self.threshold if threshold is None else threshold
        return self.evidence >= enough and self.rate is not None and self.rate < self.low

    def _likelihood_ratio(self, rate: float) -> float:
        p0 = self._lower_bound() * math.sqrt(self.factor)
        if p0 <= 0.0:
            return 0.0
        p1 = self.factor * p0
        return rate * math.log(p1 / p0) + (1.0 - rate) * math.log((1.0 - p1) / (1.0 - p0))

    def _lower_bound(self) -> float:
        """Lower end of the mean's interval (Wilson 1927) with each group as one trial; 0 before the first step."""
        n, z2 = self._mean_groups, CONFIDENCE_Z**2
        if not n:
            return 0.0
        p = self._mean_resolved / n
        half = CONFIDENCE_Z * math.sqrt(max(0.0, p * (1.0 - p)) / n + z2 / (4.0 * n * n))
        return max(0.0, (p + z2 / (2.0 * n) - half) / (1.0 + z2 / n))

    def _absorb(self) -> None:
        """The steps since the suspicion began were no collapse: they belong to the mean."""
        keep = (1.0 - 1.0 / self.window) ** self._steps
        self._mean_resolved = keep * self._mean_resolved + self._resolved
        self._mean_groups = keep * self._mean_groups + self._groups
        self._resolved, self._groups, self._steps, self.evidence = 0.0, 0.0, 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "mean": [self._mean_resolved, self._mean_groups],
            "suspect": [self._resolved, self._groups, self._steps],
            "evidence": self.evidence,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean_resolved, self._mean_groups = state["mean"]
        self._resolved, self._groups, self._steps = state["suspect"]
        self.evidence = state["evidence"]
