"""Rewards become advantages: each attempt is compared with the other attempts at the same task (GRPO).

A trajectory counts once in its group however many segments it has. Attempts that say nothing about the policy
(`infra_error`, aborted, removed) leave the statistics instead of becoming zeros, which would bias the group's mean.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from swe_rl.errors import DataError
from swe_rl.types import Sample, SampleStatus, Verdict

STD_EPSILON = 1e-6
SPREAD_TOLERANCE = 1e-6  # rewards closer than this are equal: dividing rounding noise by its own spread is no signal


@dataclass(frozen=True)
class GroupAdvantages:
    """advantages: one per sample, None = the sample takes no part in training. The rest are counts for the metrics."""

    advantages: list[float | None]
    groups: int
    groups_without_spread: int
    trajectories: int
    trajectories_left_out: int
    mean_reward: float


def counts(sample: Sample) -> bool:
    """Whether a sample belongs to its group's statistics (design rule 3)."""
    return (
        not sample.remove_sample
        and sample.reward is not None
        and sample.status not in (SampleStatus.ABORTED, SampleStatus.FAILED)
        and sample.metadata.get("verdict") not in (Verdict.INFRA_ERROR, Verdict.INFRA_ERROR.value)
    )


def trajectory_key(sample: Sample, position: int) -> Hashable:
    """What the segments of one attempt share; a sample without `rollout_id` is an attempt of its own."""
    own = ("sample", position) if sample.rollout_id is None else sample.rollout_id
    return (sample.group_index, own)


def group_advantages(samples: Sequence[Sample], *, normalise_std: bool) -> GroupAdvantages:
    """Advantages A_i = r_i - mean(r), divided by (std(r) + 1e-6) if `normalise_std` (Shao et al. 2024, GRPO, eq. 3;
    without the division: Liu et al. 2025, Dr. GRPO).

    The standard deviation is the sample's (n - 1). Groups without spread carry no signal: their samples get None.
    Raises DataError for a sample without a group, a reward that is no finite number, or segments of one trajectory
    with different rewards.
    """
    rewards: dict[Hashable, float] = {}
    members: dict[Hashable, list[Hashable]] = {}
    left_out: set[Hashable] = set()
    for position, sample in enumerate(samples):
        key = trajectory_key(sample, position)
        if not counts(sample):
            left_out.add(key)
            continue
        if sample.group_index is None:
            raise DataError(f"sample {sample.index}: no group_index, so GRPO cannot compare its reward")
        reward = _number(sample)
        if key not in rewards:
            rewards[key] = reward
            members.setdefault(sample.group_index, []).append(key)
        elif rewards[key] != reward:
            raise DataError(f"trajectory {key}: its segments have different rewards ({rewards[key]}, {reward})")
    for key in left_out & rewards.keys():
        raise DataError(f"trajectory {key}: some of its segments are removed and some are not")

    values: dict[Hashable, float] = {}
    for keys in members.values():
        values.update(_normalise({key: rewards[key] for key in keys}, normalise_std))
    return GroupAdvantages(
        advantages=[values.get(trajectory_key(sample, i)) for i, sample in enumerate(samples)],
        groups=len(members),
        groups_without_spread=sum(keys[0] not in values for keys in members.values()),
        trajectories=len(rewards),
        trajectories_left_out=len(left_out),
        mean_reward=math.fsum(rewards.values()) / len(rewards) if rewards else math.nan,
    )


def _normalise(rewards: dict[Hashable, float], normalise_std: bool) -> dict[Hashable, float]:
    """Advantages of one group, empty where all rewards are equal."""
    values = list(rewards.values())
    if max(values) - min(values) <= SPREAD_TOLERANCE:
        return {}
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    scale = 1.0 / (std + STD_EPSILON) if normalise_std else 1.0
    return {key: (value - mean) * scale for key, value in rewards.items()}


def _number(sample: Sample) -> float:
    reward = sample.reward
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise DataError(f"sample {sample.index}: reward must be a finite number, not {reward!r}")
    return float(reward)
