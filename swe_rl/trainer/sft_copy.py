"""Copy drills: random token segments that come again. They teach a tiny model to copy before and while it learns the task.

Nothing in them can be known by heart, so the only way to lower the loss is to find the earlier place and continue from it
(without a warm-up of this kind, policies of a few million parameters did not learn to copy a name here).
"""

from __future__ import annotations

import random

import numpy as np

from swe_rl.trainer.packing import TrainingSequence
from swe_rl.trainer.sft_data import weighted_sequence


def copy_drills(rows: int, length: int, vocabulary: int, reserved: int, rng: random.Random) -> list[TrainingSequence]:
    """`rows` sequences of `length` random tokens >= `reserved`; weight 1 on tokens that earlier ones determine."""
    drills = (_drill(length, vocabulary, reserved, rng) for _ in range(rows))
    return [weighted_sequence(np.array(ids), np.array(known)) for ids, known in drills]


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
