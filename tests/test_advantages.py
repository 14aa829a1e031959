"""GRPO advantages against the definition, and who belongs to a group."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.advantages import group_advantages
from swe_rl.errors import DataError
from swe_rl.types import Sample, SampleStatus, Verdict


def attempt(group: int | None, trajectory: int, reward: object, **fields: object) -> Sample:
    return Sample(group_index=group, rollout_id=trajectory, reward=reward, **fields)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.booleans())
def test_equals_the_formula(rewards, normalise):
    result = group_advantages([attempt(0, i, r) for i, r in enumerate(rewards)], normalise_std=normalise)
    if max(rewards) - min(rewards) <= 1e-6:
        assert result.advantages == [None] * len(rewards)
        assert result.groups_without_spread == 1
        return
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    expected = [(r - mean) / (std + 1e-6) if normalise else r - mean for r in rewards]
    assert result.advantages == pytest.approx(expected, abs=1e-9)


def test_groups_do_not_see_each_other():
    samples = [attempt(0, 0, 0.0), attempt(0, 1, 1.0), attempt(1, 2, 10.0), attempt(1, 3, 12.0)]
    assert group_advantages(samples, normalise_std=False).advantages == [-0.5, 0.5, -1.0, 1.0]


def test_a_trajectory_of_several_segments_counts_once():
    samples = [attempt(0, 0, 1.0), attempt(0, 0, 1.0), attempt(0, 0, 1.0), attempt(0, 1, 0.0), attempt(0, 2, 0.0)]
    result = group_advantages(samples, normalise_std=False)
    assert result.trajectories == 3
    assert result.advantages == pytest.approx([2 / 3] * 3 + [-1 / 3] * 2)
    assert result.mean_reward == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "left_out",
    [
        {"metadata": {"verdict": Verdict.INFRA_ERROR}},
        {"metadata": {"verdict": "infra_error"}},
        {"remove_sample": True},
        {"status": SampleStatus.ABORTED},
        {"status": SampleStatus.FAILED},
    ],
)
def test_attempts_that_say_nothing_leave_the_statistics(left_out):
    samples = [attempt(0, 0, 1.0), attempt(0, 1, 0.0), attempt(0, 2, -1.0, **left_out), attempt(0, 3, None)]
    result = group_advantages(samples, normalise_std=False)
    assert result.advantages == [0.5, -0.5, None, None]
    assert result.trajectories_left_out == 2


def test_a_group_of_one_and_a_group_without_spread_train_nothing():
    result = group_advantages([attempt(0, 0, 1.0), attempt(1, 1, 0.3), attempt(1, 2, 0.1 + 0.2)], normalise_std=True)
    assert result.advantages == [None, None, None]
    assert (result.groups, result.groups_without_spread) == (2, 2)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), True, {"score": 1.0}, "1"])
def test_a_reward_that_is_no_finite_number_is_refused(reward):
    with pytest.raises(DataError, match="finite number"):
        group_advantages([attempt(0, 0, reward), attempt(0, 1, 0.0)], normalise_std=True)


def test_broken_groups_are_refused():
    with pytest.raises(DataError, match="no group_index"):
        group_advantages([attempt(None, 0, 1.0)], normalise_std=True)
    with pytest.raises(DataError, match="different rewards"):
        group_advantages([attempt(0, 0, 1.0), attempt(0, 0, 0.0)], normalise_std=True)
    with pytest.raises(DataError, match="some of its segments are removed"):
        group_advantages([attempt(0, 0, 1.0), attempt(0, 0, 1.0, remove_sample=True)], normalise_std=True)
