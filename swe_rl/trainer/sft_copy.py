"""Copy drills: random token segments that come again. They teach a tiny model to copy before and while it learns the task.

Nothing in them can be known by heart, so the only way to lower the loss is to find the earlier place and continue from it
(`facts`: without a warm-up of this kind, policies of a few million parameters never learn to copy a name).
"""

from __future__ import annotations

import random

import torch

from swe_rl.trainer.sft_data import Batch


def copy_batch(rows: int, length: int, vocabulary: int, reserved: int, rng: random.Random) -> Batch:
    """`rows` sequences of `length` random tokens >= `reserved`; weight 1 on tokens that earlier ones determine."""
    tokens = torch.zeros(rows, length, dtype=torch.long)
    weights = torch.zeros(rows, length)
    for row in range(rows):
        ids, known = _drill(length, vocabulary, reserved, rng)
        tokens[row] = torch.tensor(ids)
        weights[row] = torch.tensor(known)
    return Batch(tokens, weights, rows * length)


def _drill(length: int, vocabulary: int, reserved: int, rng: random.Random) -> tuple[list[int], list[float]]:
    ids: list[int] = []
    known: list[float] = []
    while len(ids) < length:
        if len(ids) > 8 and rng.random() < 0.6:
            size = rng.randint(2, min(24, len(ids) - 1))
            start = rng.randrange(len(ids) - size + 1)
            ids += ids[start : start + size]
            known += [0.0] + [1.0] * (size - 1)  # the first of a repeated segment cannot be known
        else:
            size = rng.randint(4, 30)
            ids += [rng.randrange(reserved, vocabulary) for _ in range(size)]
            known += [0.0] * size
    return ids[:length], known[:length]
