"""Settings: when a run counts as collapsed, and how often it may go back to its last good checkpoint."""

from __future__ import annotations

from typing import ClassVar

from swe_rl.config.setting import Area, setting


class GuardSettings(Area):
    area: ClassVar[str] = "guard"

    guard: bool = setting(True, "go back to the last good checkpoint where the policy collapses")
    guard_accuracy_factor: float = setting(
        0.5, "collapsed: the resolve rate is under this share of its mean", gt=0, lt=1
    )
    guard_false_alarm_steps: float = setting(
        1000.0,
        "steps for one false alarm while the resolve rate is above sqrt(guard_accuracy_factor) of its mean",
        gt=1,
    )
    guard_entropy_factor: float = setting(
        4.0, "collapsed: the entropy is over this many times its mean, or under that fraction of it", gt=1
    )
    guard_logprob_factor: float = setting(
        5.0, "collapsed: engine and trainer differ by this many times the mean log-prob difference", gt=1
    )
    guard_logprob_floor: float = setting(
        0.02, "log-prob differences below this (nats) count as this: rounding, or one step ahead", gt=0
    )
    guard_patience: int = setting(2, "steps in a row that entropy or log-prob difference must be outside", ge=1)
    guard_window: int = setting(20, "steps over which the means run", ge=2)
    guard_min_steps: int = setting(3, "steps that are watched before the first return", ge=2)
    guard_max_rollbacks: int = setting(3, "returns to a checkpoint; after the next collapse the run ends", ge=0)
