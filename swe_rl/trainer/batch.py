"""Samples of a rollout become the training sequences of its optimizer steps, checked and weighted.

Every trained token gets its share of the loss here, from counts over the whole optimizer step. The loss is then a plain
weighted sum, so it is exact however the sequences are packed into micro-batches or spread over ranks.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from swe_rl.advantages import group_advantages, trajectory_key
from swe_rl.config.algorithm import AlgorithmSettings
from swe_rl.errors import DataError
from swe_rl.trainer.packing import TrainingSequence, plan_micro_batches
from swe_rl.types import Sample

# plan[rank][optimizer step][micro-batch] = its sequences (none: the rank runs a placeholder)
StepPlan = list[list[list[list[TrainingSequence]]]]


@dataclasses.dataclass(frozen=True)
class TrainingBatch:
    """sequences[i] belongs to trajectory keys[i]; fields: "advantage" and "rollout_log_prob"."""

    sequences: list[TrainingSequence]
    keys: list[Hashable]
    metrics: dict[str, float]


def training_batch(samples: Sequence[Sample], settings: AlgorithmSettings, vocab_size: int) -> TrainingBatch:
    """Check samples and keep those that train: in a group with spread, with at least one token of mask 1.

    Raises DataError naming the sample where lengths disagree, a token is outside the vocabulary, or a log-prob is
    missing or impossible.
    """
    result = group_advantages(samples, normalise_std=settings.grpo_std_normalization)
    sequences: list[TrainingSequence] = []
    keys: list[Hashable] = []
    for position, (sample, advantage) in enumerate(zip(samples, result.advantages, strict=True)):
        if advantage is None:
            continue
        sequence = training_sequence(sample, advantage, vocab_size)
        if not len(sequence.trained):
            continue
        sequences.append(sequence)
        keys.append(trajectory_key(sample, position))
    metrics: dict[str, float] = {
        "train/groups": result.groups,
        "train/groups_without_spread": result.groups_without_spread,
        "train/trajectories": result.trajectories,
        "train/trajectories_left_out": result.trajectories_left_out,
        "train/trajectories_trained": len(set(keys)),
        "train/segments": len(sequences),
        "train/trained_tokens": sum(len(s.trained) for s in sequences),
        "train/tokens": sum(len(s.tokens) for s in sequences),
    }
    if result.trajectories:
        metrics["train/mean_reward"] = result.mean_reward
    return TrainingBatch(sequences, keys, metrics)


def training_sequence(sample: Sample, advantage: float, vocab_size: int) -> TrainingSequence:
    """One sample as a sequence whose trained tokens are exactly those of loss mask 1 (a missing mask is all ones)."""
    name = f"sample {sample.index} (group {sample.group_index}, trajectory {sample.rollout_id})"
    try:
        sample.validate(vocab_size)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error
    n = sample.response_length
    tokens = np.asarray(sample.tokens, dtype=np.int64)
    mask = np.ones(n, np.int64) if sample.loss_mask is None else np.asarray(sample.loss_mask)
    if sample.rollout_log_probs is None:
        raise DataError(f"{name}: no rollout_log_probs; the generate function must ask the engine for log-probs")
    chosen = np.flatnonzero(mask)
    log_probs = np.asarray(sample.rollout_log_probs, dtype=np.float32)[chosen]
    return TrainingSequence(
        tokens=tokens,
        trained=chosen + (len(tokens) - n),
        fields={
            "advantage": np.full(len(chosen), advantage, np.float32),
            "rollout_log_prob": log_probs,
        },
    )


def token_weights(sequences: Sequence[TrainingSequence], keys: Sequence[Hashable], aggregation: str) -> list[float]:
    """The loss weight of each trained token, one number per sequence; all tokens' weights sum to 1.

    token_mean: every token counts the same. trajectory_mean: every trajectory counts the same, and inside it every
    token of all its segments.
    """
    tokens: Counter[Hashable] = Counter()
    for sequence, key in zip(sequences, keys, strict=True):
        tokens[key] += len(sequence.trained)
    if aggregation == "token_mean":
        return [1.0 / tokens.total()] * len(sequences)
    if aggregation == "trajectory_mean":
        return [1.0 / (len(tokens) * tokens[key]) for key in keys]
    raise ValueError(f"unknown loss aggregation '{aggregation}'")


def plan_steps(
    batch: TrainingBatch, *, steps: int, aggregation: str, max_tokens: int, ranks: int, seed: Sequence[int]
) -> StepPlan:
    """Divide a batch over optimizer steps (whole trajectories, shuffled by `seed`), ranks and micro-batches.

    Fewer steps are made where there are fewer trajectories than steps; none where nothing trains.
    """
    trajectories = list(dict.fromkeys(batch.keys))
    steps = min(steps, len(trajectories))
    if steps > 1:
        np.random.default_rng(list(seed)).shuffle(trajectories)
    step_of = {key: i % steps for i, key in enumerate(trajectories)}
    plan: StepPlan = [[] for _ in range(ranks)]
    for step in range(steps):
        chosen = [i for i, key in enumerate(batch.keys) if step_of[key] == step]
        weights = token_weights([batch.sequences[i] for i in chosen], [batch.keys[i] for i in chosen], aggregation)
        weighted = [_with_weight(batch.sequences[i], weight) for i, weight in zip(chosen, weights, strict=True)]
        rows = plan_micro_batches([len(s.tokens) for s in weighted], max_tokens, ranks)
        for rank in range(ranks):
            plan[rank].append([[weighted[i] for i in members] for members in rows[rank]])
    return plan


def _with_weight(sequence: TrainingSequence, weight: float) -> TrainingSequence:
    weights = np.full(len(sequence.trained), weight, np.float32)
    return dataclasses.replace(sequence, fields={**sequence.fields, "weight": weights})
