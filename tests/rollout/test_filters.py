"""Spread, limits and the control experiment."""

from __future__ import annotations

from swe_rl.rollout.filters import has_spread, mask_limit_hits, shuffle_rewards
from swe_rl.types import Sample


def sample(rollout_id, reward=0.0, exit_status="submitted"):
    return Sample(
        rollout_id=rollout_id,
        reward=reward,
        tokens=[1, 2, 3],
        response_length=2,
        loss_mask=[1, 1],
        metadata={"exit_status": exit_status},
    )


def test_spread():
    assert has_spread([0.0, 1.0]) and has_spread([1.0, 1.0, 0.0])
    assert (
        not has_spread([1.0, 1.0])
        and not has_spread([1.0])
        and not has_spread([])
        and not has_spread([0.1, 0.1 + 1e-12])
    )


def test_mask_limit_hits():
    kinds = ["submitted", "context_limit", "step_limit", "deadline"]
    for mode, expected in {"none": 0, "length": 1, "all": 3}.items():
        samples = [sample(i, 1.0, kind) for i, kind in enumerate(kinds)]
        samples.append(sample(1, 1.0, "context_limit"))  # a second segment of the same attempt
        assert mask_limit_hits(samples, mode) == expected
        masked = [one for one in samples if one.loss_mask == [0, 0]]
        assert len({one.rollout_id for one in masked}) == expected
        assert samples[0].loss_mask == [1, 1]
        assert all(one.reward == 1.0 and not one.remove_sample for one in samples)  # they stay in the statistics


def test_shuffled_rewards_are_a_permutation_over_attempts():
    samples = [sample(i // 2, float(i // 2 < 5)) for i in range(40)]  # two segments an attempt
    shuffle_rewards(samples, seed=1, step=3)
    assert all(a.reward == b.reward for a, b in zip(samples[::2], samples[1::2], strict=True))
    assert sum(one.reward for one in samples) == 10.0
    assert [one.metadata["true_reward"] for one in samples] == [float(i // 2 < 5) for i in range(40)]
    assert [one.reward for one in samples] != [one.metadata["true_reward"] for one in samples]
    again = [sample(i // 2, float(i // 2 < 5)) for i in range(40)]
    shuffle_rewards(again, seed=1, step=3)
    assert [one.reward for one in again] == [one.reward for one in samples]
