"""The guard of a run: looks at accuracy, entropy and log-prob difference of every step and says when the policy has collapsed.

All three describe the weights that sampled the step's attempts. Learning goes on during a suspicion; only a verdict ends it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.config.guard import GuardSettings
from swe_rl.trainer.guard.accuracy import AccuracyWatch
from swe_rl.trainer.guard.band import BandWatch

ENTROPY_FLOOR = 0.005  # nats a token: a policy that is this sure may become surer
HELD_OUT = "held-out accuracy"
DOUBT = math.log(100.0)  # evidence that is enough at the end of a run, when no further step can add to it


@dataclass(frozen=True)
class Alarm:
    """Which number left its band, after which step. A bound that is None does not exist."""

    step: int
    reason: str  # "accuracy", "entropy", "logprob_diff" or HELD_OUT
    value: float
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, Any]:
        """JSON values; a value that is not finite becomes its name."""
        value = self.value if math.isfinite(self.value) else str(self.value)
        return {"step": self.step, "reason": self.reason, "value": value, "band": [self.low, self.high]}

    def __str__(self) -> str:
        low, high = ("-" if bound is None else f"{bound:.3g}" for bound in (self.low, self.high))
        return f"{self.reason} is {self.value:.3g}, outside its band [{low}, {high}]"


class Guard:
    """`judge` every step. With `guard` off it watches and never raises an alarm."""

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self.steps = 0
        self.accuracy = AccuracyWatch(
            factor=settings.guard_accuracy_factor,
            false_alarm_steps=settings.guard_false_alarm_steps,
            window=settings.guard_window,
        )
        self.entropy = BandWatch(
            factor=settings.guard_entropy_factor, window=settings.guard_window, floor=ENTROPY_FLOOR
        )
        self.logprob_diff = BandWatch(
            factor=settings.guard_logprob_factor,
            window=settings.guard_window,
            floor=settings.guard_logprob_floor,
            upper_only=True,
        )
        self._step = 0

    def judge(self, step: int, rollout: Mapping[str, float], train: Mapping[str, float]) -> Alarm | None:
        """The alarm after rollout step `step`, if there is one.

        rollout: `resolve_rate` over all attempts that count, `groups`, `entropy`. train: `train/mean_abs_logprob_diff`.
        What a step does not have (nothing was trained, say) is not judged.
        """
        self.steps, self._step = self.steps + 1, step
        if "resolve_rate" in rollout:
            self.accuracy.add(rollout["resolve_rate"], int(rollout["groups"]))
        if "entropy" in rollout:
            self.entropy.add(rollout["entropy"])
        if "train/mean_abs_logprob_diff" in train:
            self.logprob_diff.add(train["train/mean_abs_logprob_diff"])
        if self.steps < self.settings.guard_min_steps:
            return None
        return self._alarm(self.accuracy.threshold)

    def doubt(self) -> Alarm | None:
        """At the end of a run, with no further step to look at: an alarm for less evidence than `judge` wants.

        One step outside is enough where it is far outside; a step of few tasks may well be a little.
        """
        return self._alarm(DOUBT, last=True)

    def suspicion(self) -> Alarm | None:
        """What was outside its bounds in the last step and may still be chance."""
        if not self.settings.guard or self.steps < self.settings.guard_min_steps:
            return None
        for name, watch in (("entropy", self.entropy), ("logprob_diff", self.logprob_diff)):
            if watch.outside and watch.value is not None:
                return Alarm(self._step, name, watch.value, watch.low, watch.high)
        if self.accuracy.convinced(0.0):
            return Alarm(self._step, "accuracy", self.accuracy.rate or 0.0, self.accuracy.low, None)
        return None

    def judge_outcome(self, step: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> Alarm | None:
        """An alarm where training has cost the policy `guard_accuracy_factor` of its held-out rate beyond doubt.

        before, after: evaluations on the same tasks, with `resolve_rate` and `ci95`.
        """
        low = self.settings.guard_accuracy_factor * float(before["resolve_rate"])
        if not self.settings.guard or float(after["ci95"][1]) >= low:
            return None
        return Alarm(step, HELD_OUT, float(after["resolve_rate"]), low, None)

    @property
    def content(self) -> bool:
        """Whether nothing speaks against the weights that sampled the last step."""
        return self.accuracy.evidence == 0.0 and not self.entropy.outside and not self.logprob_diff.outside

    def metrics(self) -> dict[str, float]:
        """Numbers for the log: bands, evidence, and whether the guard is content (1) or not (0)."""
        values = {
            "accuracy_mean": self.accuracy.mean,
            "accuracy_low": self.accuracy.low,
            "accuracy_evidence": self.accuracy.evidence,
            "entropy_low": self.entropy.low,
            "entropy_high": self.entropy.high,
            "logprob_diff_high": self.logprob_diff.high,
        }
        return {name: value for name, value in values.items() if value is not None} | {"content": float(self.content)}

    def _alarm(self, evidence: float, *, last: bool = False) -> Alarm | None:
        if not self.settings.guard:
            return None
        for name, watch in (("entropy", self.entropy), ("logprob_diff", self.logprob_diff)):
            if watch.value is not None and (watch.lost(self.settings.guard_patience) or (last and watch.far())):
                return Alarm(self._step, name, watch.value, watch.low, watch.high)
        if self.accuracy.convinced(evidence):
            return Alarm(self._step, "accuracy", self.accuracy.rate or 0.0, self.accuracy.low, None)
        return None

    def state_dict(self) -> dict[str, Any]:
        """JSON values; `restored` continues exactly."""
        return {"steps": self.steps} | {name: watch.state_dict() for name, watch in self._watches().items()}

    @classmethod
    def restored(cls, settings: GuardSettings, state: dict[str, Any]) -> Guard:
        """The guard as it was when `state` was saved; a new one where it is empty."""
        guard = cls(settings)
        if state:
            guard.steps = state["steps"]
            for name, watch in guard._watches().items():
                watch.load_state_dict(state[name])
        return guard

    def _watches(self) -> dict[str, AccuracyWatch | BandWatch]:
        return {"accuracy": self.accuracy, "entropy": self.entropy, "logprob_diff": self.logprob_diff}
