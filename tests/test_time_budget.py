"""A run with a limit of time trains as long as the evaluation after it still fits, and one step at least."""

from __future__ import annotations

import pytest

from swe_rl.config import Config
from swe_rl.observe.summary import Totals
from swe_rl.time_budget import TimeBudget


@pytest.mark.parametrize(
    ("limits", "trained", "steps", "used_up"),
    [
        ({}, 1e6, 100, False),
        ({"max_train_seconds": 600}, 599.0, 10, False),
        ({"max_train_seconds": 600}, 600.0, 10, True),
        # 60 s to start, 200 s for the evaluation before and as much for the one after: 440 s are left of 900
        ({"max_run_seconds": 900}, 400.0, 10, False),  # the next step will take 40
        ({"max_run_seconds": 900}, 401.0, 10, True),
        ({"max_run_seconds": 100}, 0.0, 0, False),  # the first step is always made
        ({"max_run_seconds": 100}, 40.0, 1, True),
        ({"max_run_seconds": 900, "max_train_seconds": 300}, 300.0, 10, True),
    ],
)
def test_when_the_time_is_used_up(limits: dict[str, float], trained: float, steps: int, used_up: bool) -> None:
    totals = Totals(seconds_training=trained, seconds_by_stage={"evaluation": 200.0})
    assert TimeBudget(Config(**limits), startup=60.0).used_up(totals, steps=steps, evaluation=200.0) is used_up
