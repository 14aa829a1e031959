"""Trajectories become samples: one per segment, or one per step with `--dynamic-history`; field names are slime's."""

from __future__ import annotations

import copy
from typing import Any

from swe_rl.types import Segment, Trajectory

TRUNCATED = ("step_limit", "context_limit", "deadline")


def make_samples(sample: Any, trajectory: Trajectory, tokenizer: Any, *, dynamic_history: bool) -> list[Any]:
    """Copies of `sample` (ours or slime's: only attribute names are used) filled with the trajectory's tokens.

    All share `rollout_id`, so that the trainer counts the attempt once. An attempt in which nothing was sampled gives one
    sample with an empty response, which trains nothing.
    """
    segments = _steps(trajectory) if dynamic_history else trajectory.segments
    segments = [segment for segment in segments if any(segment.loss_mask)]
    if not segments:
        tokens = trajectory.turns[0].prompt_ids if trajectory.turns else [0]
        segments = [Segment(list(tokens), len(tokens), [], [], [])]
    return [_fill(copy.copy(sample), segment, trajectory, tokenizer) for segment in segments]


def _steps(trajectory: Trajectory) -> list[Segment]:
    """Each turn as a training sequence of its own: its exact prompt, and its output trained."""
    return [
        Segment(
            tokens=turn.prompt_ids + turn.output_ids,
            prompt_length=len(turn.prompt_ids),
            loss_mask=[1] * len(turn.output_ids),
            log_probs=turn.log_probs,
            weight_versions=turn.weight_versions,
            fork_cause="dynamic_history" if number else "",
        )
        for number, turn in enumerate(trajectory.turns)
    ]


def _fill(sample: Any, segment: Segment, trajectory: Trajectory, tokenizer: Any) -> Any:
    response = segment.tokens[segment.prompt_length :]
    sample.tokens = segment.tokens
    sample.response = tokenizer.decode(response, skip_special_tokens=False)
    sample.response_length = len(response)
    sample.loss_mask = segment.loss_mask
    sample.rollout_log_probs = segment.log_probs
    sample.weight_versions = segment.weight_versions
    sample.status = _status(sample, trajectory)
    sample.remove_sample = trajectory.exit_status == "infra_error"
    sample.metadata = {**sample.metadata, "fork_cause": segment.fork_cause}
    return sample


def _status(sample: Any, trajectory: Trajectory) -> Any:
    kinds = sample.Status
    if trajectory.exit_status == "infra_error":
        return kinds.FAILED
    return kinds.TRUNCATED if trajectory.exit_status in TRUNCATED else kinds.COMPLETED
