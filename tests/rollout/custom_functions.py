"""A user's functions, as `--custom-generate-function-path` and `--custom-rm-path` load them."""

from __future__ import annotations

import asyncio


async def generate(args, sample, sampling_params):
    await asyncio.sleep(0)
    sample.tokens, sample.response_length = [1, 2, 3, 4], 2
    sample.loss_mask, sample.rollout_log_probs = [1, 1], [-0.5, -0.5]
    sample.status = sample.Status.COMPLETED
    return sample


async def reward(args, sample, **kwargs):
    return float(sample.index % 2)


async def nan_reward(args, sample):
    return float("nan")


async def no_reward(args, sample):
    return None


async def shifted(args, sample, sampling_params):
    sample = await generate(args, sample, sampling_params)
    sample.loss_mask = [1]
    return sample


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
