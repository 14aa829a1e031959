"""A run with a limit of time trains as long as the evaluation after it still fits, and one step at least."""

from __future__ import annotations

import pytest

from swe_rl.config import Config
from swe_rl.time_budget import TimeBudget


@pytest.mark.parametrize(
    ("limits", "now", "trained", "steps", "used_up"),
    [
        ({}, 1e7, 1e6, 100, False),
        ({"max_train_seconds": 600}, 900.0, 599.0, 10, False),
        ({"max_train_seconds": 600}, 900.0, 600.0, 10, True),
        ({"max_run_seconds": 900}, 660.0, 400.0, 10, False),  # 40 for the next step, 200 for the evaluation
        ({"max_run_seconds": 900}, 661.0, 400.0, 10, True),
        ({"max_run_seconds": 100}, 260.0, 0.0, 0, False),  # the first step is always made
        ({"max_run_seconds": 100}, 300.0, 40.0, 1, True),
        ({"max_run_seconds": 900, "max_train_seconds": 300}, 500.0, 300.0, 10, True),
    ],
)
def test_when_the_time_is_used_up(
    limits: dict[str, float], now: float, trained: float, steps: int, used_up: bool
) -> None:
    budget = TimeBudget(Config(**limits), started=0.0, clock=lambda: now)
    assert budget.used_up(trained=trained, steps=steps, evaluation=200.0) is used_up


def test_the_clock_goes_on_where_a_run_continues() -> None:
    settings = Config(max_run_seconds=900)
    first = TimeBudget(settings, started=100.0, clock=lambda: 600.0)
    state = first.state_dict()
    again = TimeBudget(settings, started=7000.0, clock=lambda: 7060.0)
    again.load_state_dict(state)
    assert again.seconds == 560.0
    assert not again.used_up(trained=400.0, steps=10, evaluation=300.0)
    assert again.used_up(trained=400.0, steps=10, evaluation=301.0)


def test_what_another_run_took_does_not_count() -> None:
    settings = Config(max_run_seconds=900, max_train_seconds=600)
    budget = TimeBudget(settings, started=0.0, clock=lambda: 890.0)
    budget.loaded(trained=5000.0, steps=12)
    assert not budget.used_up(trained=5000.0, steps=12, evaluation=100.0), "its own first step"
    assert budget.used_up(trained=5010.0, steps=13, evaluation=100.0)
    again = TimeBudget(settings, started=0.0, clock=lambda: 0.0)
    again.load_state_dict({**budget.state_dict(), "seconds": 0.0})
    assert not again.used_up(trained=5010.0, steps=13, evaluation=0.0)
    assert again.used_up(trained=5600.0, steps=13, evaluation=0.0), "ten minutes of its own training"
