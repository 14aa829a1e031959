"""What becomes of sampled groups before they train: spread, limits, and the shuffled-rewards control."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from swe_rl.advantages import SPREAD_TOLERANCE
from swe_rl.types import Sample

LIMITS = {"none": (), "length": ("context_limit",), "all": ("context_limit", "step_limit", "deadline")}


def has_spread(rewards: Sequence[float]) -> bool:
    """Whether rewards of a group differ: without it every advantage is zero and the group trains nothing
    (dynamic sampling, DAPO, Yu et al. 2025, section 3.2)."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > SPREAD_TOLERANCE


def groups_with_spread(samples: Sequence[Sample]) -> set[int | None]:
    """The groups whose rewards, as they are now, train something."""
    rewards: dict[int | None, dict[Any, float]] = {}
    for sample in samples:
        if sample.reward is not None:
            rewards.setdefault(sample.group_index, {})[sample.rollout_id] = float(sample.reward)  # type: ignore[arg-type]
    return {group for group, by_attempt in rewards.items() if has_spread(list(by_attempt.values()))}


def mask_limit_hits(samples: Sequence[Sample], mode: str) -> int:
    """Take attempts that ended by a limit of `mode` ("none", "length", "all") out of the loss; returns how many.

    Their rewards stay in the group's statistics (overlong filtering, DAPO, section 3.4).
    """
    masked = set()
    for sample in samples:
        if sample.metadata.get("exit_status") in LIMITS[mode]:
            sample.loss_mask = [0] * sample.response_length
            sample.metadata["masked"] = sample.metadata["exit_status"]
            masked.add(sample.rollout_id)
    return len(masked)


def shuffle_rewards(samples: Sequence[Sample], *, seed: int, step: int) -> None:
    """Permute rewards among the attempts of a step: what is learnt from these is no learning.

    The true reward stays in `metadata["true_reward"]`. Segments of one attempt keep one reward.
    """
    rewards: dict[Any, float | dict[str, Any] | None] = {sample.rollout_id: sample.reward for sample in samples}
    permuted = list(rewards.values())
    random.Random(f"{seed}/shuffle_rewards/{step}").shuffle(permuted)
    new = dict(zip(rewards, permuted, strict=True))
    for sample in samples:
        sample.metadata["true_reward"] = sample.reward
        sample.reward = new[sample.rollout_id]
