"""Samples are checked before they train, and each sampled token trains exactly once."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from swe_rl.config import Config
from swe_rl.errors import DataError
from swe_rl.trainer.batch import plan_steps, training_batch, training_sequence
from swe_rl.types import Sample
from tests.trainer.conftest import VOCAB, make_samples

CONFIG = Config()


@pytest.mark.parametrize("steps", [1, 3])
def test_each_sampled_token_is_trained_exactly_once(steps):
    samples = make_samples()
    batch = training_batch(samples, CONFIG, VOCAB)
    plan = plan_steps(batch, steps=steps, aggregation="token_mean", max_tokens=64, ranks=2, seed=(1, 2))
    assert all(len(rows) == steps for rows in plan)
    trained: Counter[tuple[bytes, int]] = Counter()
    for rows in plan:
        for row in (row for micro_batches in rows for row in micro_batches):
            for s in row:
                trained.update((s.tokens.tobytes(), int(t)) for t in s.trained)
    sampled = Counter(
        (np.asarray(s.tokens).tobytes(), len(s.tokens) - s.response_length + i)
        for s in samples
        for i, m in enumerate(s.loss_mask)
        if m
    )
    assert trained == sampled
    assert batch.metrics["train/trained_tokens"] == sampled.total()


def test_segments_of_a_trajectory_stay_in_one_optimizer_step():
    batch = training_batch(make_samples(), CONFIG, VOCAB)
    plan = plan_steps(batch, steps=4, aggregation="trajectory_mean", max_tokens=10_000, ranks=1, seed=(0,))
    owner = {s.tokens.tobytes(): key for s, key in zip(batch.sequences, batch.keys, strict=True)}
    steps = [{owner[s.tokens.tobytes()] for row in rows for s in row} for rows in plan[0]]
    assert sum(len(s) for s in steps) == len(set(batch.keys))
    assert max(len(s) for s in steps) - min(len(s) for s in steps) <= 1


def test_the_mask_is_aligned_with_the_response():
    sample = Sample(
        group_index=0,
        tokens=[5, 6, 7, 8, 9],
        response_length=3,
        loss_mask=[1, 0, 1],
        rollout_log_probs=[-0.5, 0.0, -0.25],
        reward=1.0,
    )
    s = training_sequence(sample, 2.0, VOCAB)
    assert s.trained.tolist() == [2, 4]  # tokens 7 and 9
    assert s.fields["rollout_log_prob"].tolist() == [-0.5, -0.25]
    assert s.fields["advantage"].tolist() == [2.0, 2.0]


def test_groups_without_spread_and_empty_masks_do_not_train():
    samples = make_samples(groups=2)
    for s in samples:
        if s.group_index == 0:
            s.reward = 1.0
    samples[-1].loss_mask = [0] * samples[-1].response_length
    batch = training_batch(samples, CONFIG, VOCAB)
    assert {key[0] for key in batch.keys} == {1}
    assert batch.metrics["train/groups_without_spread"] == 1
    assert batch.metrics["train/segments"] == sum(s.group_index == 1 for s in samples) - 1


def test_nothing_to_train_gives_an_empty_plan():
    batch = training_batch([dataclasses.replace(s, reward=0.0) for s in make_samples()], CONFIG, VOCAB)
    assert plan_steps(batch, steps=2, aggregation="token_mean", max_tokens=64, ranks=2, seed=(0,)) == [[], []]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_mask": [1, 1]}, "loss_mask has 2 entries"),
        ({"rollout_log_probs": [-1.0]}, "rollout_log_probs has 1 entries"),
        ({"rollout_log_probs": None}, "no rollout_log_probs"),
        ({"rollout_log_probs": [-1.0, float("nan"), -1.0]}, "finite and at most 0"),
        ({"rollout_log_probs": [-1.0, 0.5, -1.0]}, "finite and at most 0"),
        ({"response_length": 9}, "response_length 9 > 5"),
        ({"tokens": [5, 6, 7, 8, VOCAB]}, "vocabulary"),
        ({"tokens": [5, -1, 7, 8, 9]}, "vocabulary"),
        ({"loss_mask": [1, 2, 1]}, "0 and 1 only"),
        ({"tokens": [7, 8, 9]}, "token before it"),
    ],
)
def test_bad_samples_are_refused_by_name(change, message):
    good = Sample(
        index=17,
        group_index=0,
        tokens=[5, 6, 7, 8, 9],
        response_length=3,
        loss_mask=[1, 1, 1],
        rollout_log_probs=[-1.0, -1.0, -1.0],
    )
    training_sequence(good, 1.0, VOCAB)
    with pytest.raises(DataError, match=message):
        training_sequence(dataclasses.replace(good, **change), 1.0, VOCAB)
