"""One training step on one rank: log-probs of the frozen policies, then loss, backward and update per mini-batch."""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from swe_rl.config import Config
from swe_rl.trainer.backends.base import TrainBackend
from swe_rl.trainer.errors import TrainerError
from swe_rl.trainer.losses import TOKEN_MEANS, policy_loss
from swe_rl.trainer.packing import MicroBatch, TrainingSequence, make_micro_batch, placeholder
from swe_rl.trainer.schedule import lr_at


class StageClock:
    """Wall seconds by stage of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


class StepRunner:
    """Runs the optimizer steps of one rollout batch and counts them.

    optimizer_steps: updates made since the start of the run: the weight version. A skipped step is not one.
    """

    def __init__(self, config: Config, backend: TrainBackend) -> None:
        self.config = config
        self.backend = backend
        self.optimizer_steps = 0
        self.nonfinite_in_a_row = 0
        self._loss = functools.partial(policy_loss, settings=config)

    def run(self, steps: Sequence[Sequence[Sequence[TrainingSequence]]]) -> dict[str, float]:
        """Train on steps[optimizer step][micro-batch] (this rank's part of `batch.plan_steps`); metrics of the whole.

        Raises TrainerError after `max_nonfinite_steps` steps in a row whose loss or gradient norm was not finite.
        """
        clock, started = StageClock(), time.perf_counter()
        with clock.stage("pack"):
            names = _field_names(steps)
            packed = [[make_micro_batch(row or [placeholder(names)]) for row in rows] for rows in steps]
        self._add_log_probs([batch for rows in packed for batch in rows], several=len(steps) > 1, clock=clock)
        results = [self._optimizer_step(rows, clock) for rows in packed]
        metrics = self._summary(results, packed, clock, time.perf_counter() - started)
        rows = sum(batch.tokens for batches in packed for batch in batches)
        sequences = sum(len(s.tokens) for batches in steps for row in batches for s in row)
        metrics["train/padding_share"] = 1.0 - sequences / rows if rows else 0.0
        return metrics

    def _add_log_probs(self, batches: Sequence[MicroBatch], *, several: bool, clock: StageClock) -> None:
        """Log-probs before the first update: needed where it is not the last, and of the reference for the KL."""
        wanted = [("old_log_prob", False)] * several + [("ref_log_prob", True)] * (self.config.kl_loss_coef > 0)
        for name, reference in wanted:
            with clock.stage(name):
                for batch, values in zip(batches, self.backend.log_probs(batches, reference=reference), strict=True):
                    batch.fields[name] = values

    def _optimizer_step(self, batches: Sequence[MicroBatch], clock: StageClock) -> dict[str, float]:
        with clock.stage("forward_backward"):
            sums = self.backend.forward_backward(batches, self._loss)
        config = self.config
        lr = lr_at(self.optimizer_steps, config, config.num_rollout * config.num_steps_per_rollout)
        with clock.stage("optimizer"):
            grad_norm, stepped = self.backend.optimizer_step(lr, sums["loss"])
        self.optimizer_steps += stepped
        self.nonfinite_in_a_row = 0 if stepped else self.nonfinite_in_a_row + 1
        if self.nonfinite_in_a_row >= config.max_nonfinite_steps:
            raise TrainerError(
                f"{self.nonfinite_in_a_row} optimizer steps in a row were skipped: loss {sums['loss']}, gradient norm "
                f"{grad_norm}. Continue from an earlier checkpoint with a lower --lr"
            )
        return {**sums, "grad_norm": grad_norm, "lr": lr, "skipped": float(not stepped)}

    def _summary(
        self,
        results: Sequence[dict[str, float]],
        packed: Sequence[Sequence[MicroBatch]],
        clock: StageClock,
        seconds: float,
    ) -> dict[str, float]:
        """Means over the optimizer steps; the log-prob difference is taken against the policy before the first."""
        metrics: dict[str, float] = {}
        for name in results[0] if results else ():
            values = [r[name] / (r["trained_tokens"] if name in TOKEN_MEANS else 1.0) for r in results]
            metrics[f"train/{name}"] = sum(values) / len(values)
        if results:
            tokens = sum(r["trained_tokens"] for r in results)
            metrics["train/trained_tokens"] = tokens
            metrics["train/skipped"] = sum(r["skipped"] for r in results)
            metrics["train/mean_abs_logprob_diff"] = sum(r["abs_logprob_diff"] for r in results) / tokens
            del metrics["train/abs_logprob_diff"]
        metrics["train/optimizer_steps"] = self.optimizer_steps
        metrics["train/micro_batches"] = sum(len(rows) for rows in packed)
        metrics["seconds/train_step"] = seconds
        metrics |= {f"seconds/train_{name}": value for name, value in clock.seconds.items()}
        metrics["train/peak_memory_bytes"] = self.backend.reduce_max(peak_memory_bytes())
        return metrics


def _field_names(steps: Sequence[Sequence[Sequence[TrainingSequence]]]) -> list[str]:
    for rows in steps:
        for row in rows:
            for sequence in row:
                return list(sequence.fields)
    return ["weight", "advantage", "rollout_log_prob"]


def peak_memory_bytes() -> float:
    """Peak device memory of this process on a GPU, else its peak resident set."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
