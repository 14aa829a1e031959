"""A user's functions, as `--custom-generate-function-path` and `--custom-rm-path` load them."""

from __future__ import annotations

import asyncio
import copy

from swe_rl.generate_with_swe import reward_func


async def generate(args, sample, sampling_params):
    await asyncio.sleep(0)
    sample.tokens, sample.response_length = [1, 2, 3, 4], 2
    sample.loss_mask, sample.rollout_log_probs = [1, 1], [-0.5, -0.5]
    sample.status = sample.Status.COMPLETED
    return sample


async def reward(args, sample, **kwargs):
    return float(sample.index % 2)


async def half_of_ours(args, sample):
    """The grader's verdict, worth half."""
    return 0.5 * await reward_func(args, sample)


async def a_third(args, sample):
    return 0.3


async def nan_reward(args, sample):
    return float("nan")


async def no_reward(args, sample):
    return None


async def shifted(args, sample, sampling_params):
    sample = await generate(args, sample, sampling_params)
    sample.loss_mask = [1]
    return sample


async def spoilt(args, sample, sampling_params):
    """Attempt 0 of each group cannot be trained on, in a way of its own."""
    sample = await generate(args, sample, sampling_params)
    if sample.index == 0:
        how = args.wandb_group
        if how == "nan":
            sample.rollout_log_probs[0] = float("nan")
        elif how == "positive":
            sample.rollout_log_probs[1] = 0.5
        elif how == "mask":
            sample.loss_mask[0] = 2
        elif how == "vocabulary":
            sample.tokens[3] = 10**6
        elif how == "first":
            sample.tokens = sample.tokens[2:]
        elif how == "missing":
            sample.rollout_log_probs = None
        elif how == "rewards":
            sample.reward = 1.0
            other = copy.copy(sample)
            other.reward = 0.0
            return [sample, other]
        elif how == "dictionary":
            sample.reward = {"score": 1.0}
    return sample


async def half_removed(args, sample, sampling_params):
    """Four segments, the first three of them not to be trained on, nor fit for it."""
    last = await generate(args, sample, sampling_params)
    removed, aborted, foreign = (copy.copy(last) for _ in range(3))
    removed.remove_sample, removed.rollout_log_probs, removed.reward = True, None, 17.0
    aborted.status, aborted.response_length = aborted.Status.ABORTED, 99
    foreign.remove_sample, foreign.tokens = True, [10**6] * 4
    return [removed, aborted, foreign, last]


async def broken(args, sample, sampling_params):
    raise KeyError("no such thing")


async def sometimes_broken(args, sample, sampling_params):
    if sample.index == 0:
        raise KeyError("no such thing")
    return await generate(args, sample, sampling_params)


async def for_ever(args, sample, sampling_params):
    await asyncio.sleep(3600)


async def two_arguments(args, sample):
    return sample


def not_a_coroutine(args, sample, sampling_params):
    return sample
