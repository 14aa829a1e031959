"""Shares of an attempt's deadline: the later stages' time is kept back from the earlier ones."""

from __future__ import annotations

import pytest

from swe_rl.config.rollout import RolloutSettings
from swe_rl.rollout import budget as module
from swe_rl.rollout.budget import AttemptBudget


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("swe_rl.deadline.time", clock)
    return clock


@pytest.mark.parametrize(("total", "grading"), [(1800, 600), (60, 600), (100, 5), (1, 600)])
def test_shares_add_up_and_grading_is_never_starved(clock, total, grading):
    budget = AttemptBudget(RolloutSettings(swe_rollout_timeout=total, swe_eval_timeout=grading))
    agent = budget.agent().remaining()
    assert 0.3 * total <= agent < total
    clock.now = agent  # the agent takes all it may
    assert budget.agent().expired() and not budget.allows_retry()
    collect = budget.collect().remaining()
    assert 0 < collect <= module.MAX_COLLECT
    clock.now += collect
    left = budget.grade().remaining()
    assert left >= min(grading + module.GRADE_ALLOCATION, 0.5 * total) - 1e-6
    assert budget.allows_regrade()
    clock.now += left
    assert budget.total.remaining() == pytest.approx(budget.close_seconds)
    assert not budget.allows_regrade()


@pytest.mark.parametrize(("total", "bound"), [(1800, 600), (1000, 440), (16, 4)])
def test_tests_have_the_same_bound_whatever_is_left_over(clock, total, bound):
    budget = AttemptBudget(RolloutSettings(swe_rollout_timeout=total, swe_eval_timeout=600))
    assert budget.tests_seconds == bound
    clock.now = 1
    assert budget.allows_retry() and budget.grade().remaining() == total - 1 - budget.close_seconds
    clock.now = total - budget.close_seconds - bound
    assert budget.allows_regrade() and budget.grade().remaining() == pytest.approx(bound)
