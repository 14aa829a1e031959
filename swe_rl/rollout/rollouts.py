"""Rollout steps and evaluations over one runtime: the rollout manager without Ray."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

from swe_rl.config import Config
from swe_rl.errors import InfraError, UsageError
from swe_rl.owned_tasks import cancel_all, gather_owned
from swe_rl.rollout.batch import RolloutBatch, run_counts, sampled_entropy, step_metrics
from swe_rl.rollout.data_source import TaskSource
from swe_rl.rollout.filters import groups_with_spread, has_spread, mask_limit_hits, shuffle_rewards
from swe_rl.rollout.functions import RolloutFunctions
from swe_rl.rollout.group import FailureGuard, GroupRunner, sampling_params_of
from swe_rl.rollout.run_one import AttemptResult
from swe_rl.rollout.runtime import Runtime
from swe_rl.types import Task

Group = list[AttemptResult]
MIN_FAILURES = 16  # infra_errors in a row that may end a step, or two groups if that is more


class Rollouts:
    """Samples groups for training and attempts for evaluation. Both may run at once; they share the concurrency bound."""

    def __init__(self, runtime: Runtime, functions: RolloutFunctions, source: TaskSource) -> None:
        self.runtime = runtime
        self.source = source
        self._config: Config = runtime.config
        self._runner = GroupRunner(runtime, functions)
        self._one_step = asyncio.Lock()  # the source's position belongs to one step at a time

    async def rollout(self, step: int) -> RolloutBatch:
        """Sample `rollout_batch_size` groups with spread, trying at most `dynamic_sampling_max_factor` times as many.

        Fewer groups come back where too many had no spread. Raises InfraError when the infrastructure fails attempt after
        attempt, or left not one that counts. Cancellation ends all attempts and their sandboxes before it passes on.
        """
        async with self._one_step:
            config, started = self._config, time.monotonic()
            self.runtime.progress.start(config.rollout_batch_size * config.n_samples_per_prompt)
            groups = await self._sample_groups()
            results = [result for group in groups for result in group]
            _require_one(results, f"step {step}")
            kept = [result for group in groups if self._keeps(group) for result in group if result.counts]
            samples = [sample for result in kept for sample in result.samples]
            entropy = sampled_entropy(results)
            if config.shuffle_rewards:
                shuffle_rewards(samples, seed=config.seed, step=step)
            masked = mask_limit_hits(samples, config.mask_limit_hits)
            for result in kept:
                if any("masked" in sample.metadata for sample in result.samples):
                    result.audit = result.audit.untrained()
            trains = groups_with_spread(samples)
            kept = [result for result in kept if result.group in trains]
            metrics = step_metrics(results, kept) | self.runtime.counters()
            metrics["groups"] = len(groups)
            metrics["groups_kept"] = len(trains)
            metrics["masked_attempts"] = masked
            metrics["epoch"] = self.source.epoch
            if entropy is not None:
                metrics["entropy"] = entropy
            metrics["seconds"] = time.monotonic() - started
            busy = self.runtime.progress.busy_seconds() | {"rollout": metrics["seconds"]}
            counts = run_counts(results, kept) | {"busy_seconds": busy}
            return RolloutBatch(step, samples, metrics, counts, self.source.state_dict())

    async def _sample_groups(self) -> list[Group]:
        """Groups in the order of their numbers; one without spread is replaced while the step's bound allows."""
        config = self._config
        wanted = config.rollout_batch_size
        limit = math.ceil(wanted * config.dynamic_sampling_max_factor) if config.dynamic_sampling else wanted
        tasks = min(wanted, len(self.source))  # a small set is gone through more than once
        guard = FailureGuard(max(MIN_FAILURES, 2 * config.n_samples_per_prompt), tasks, config.swe_rollout_timeout)
        params = sampling_params_of(config)
        everyone: list[asyncio.Task[Group]] = []
        running: set[asyncio.Task[Group]] = set()
        finished: list[Group] = []
        started = 0

        def start() -> None:
            nonlocal started
            group, task = self.source.next()
            coroutine = self._runner.run_group(task, group, config.n_samples_per_prompt, params, guard)
            everyone.append(asyncio.ensure_future(coroutine))
            running.add(everyone[-1])
            started += 1

        try:
            for _ in range(wanted):
                start()
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    group = task.result()
                    finished.append(group)
                    if not self._keeps(group) and started < limit:
                        self.runtime.progress.expected += config.n_samples_per_prompt
                        start()
        finally:
            await cancel_all(everyone)
        return sorted(finished, key=lambda group: group[0].group)

    def _keeps(self, group: Group) -> bool:
        rewards = [result.reward for result in group if result.reward is not None]
        return has_spread(rewards) if self._config.dynamic_sampling else bool(rewards)

    async def evaluate(
        self,
        tasks: Sequence[Task],
        *,
        attempts: int = 1,
        temperature: float = 1.0,
        label: str = "eval",
        attempts_dir: str = "",
    ) -> list[AttemptResult]:
        """`attempts` attempts at each task; `temperature` 0 is greedy. Top-p and top-k are off.

        Results are ordered by task and attempt, those with the verdict infra_error included. `label` decides the seeds: equal
        labels sample equally. attempts_dir: folder for the attempts in place of the run's. Raises InfraError as `rollout` does.
        """
        if attempts < 1:
            raise UsageError(f"evaluation: {attempts} attempts per task; at least 1 is needed")
        self.runtime.progress.start(len(tasks) * attempts)
        guard = FailureGuard(max(MIN_FAILURES, 2 * attempts), len(tasks), self._config.swe_rollout_timeout)
        params = sampling_params_of(self._config) | {"temperature": temperature, "top_p": 1.0, "top_k": -1}
        groups = await gather_owned(
            self._runner.run_group(task, number, attempts, params, guard, label=label, attempts_dir=attempts_dir)
            for number, task in enumerate(tasks)
        )
        results = [result for group in groups for result in group]
        _require_one(results, label)
        for result in results:
            result.samples = []  # nothing trains on them
        return results


def _require_one(results: Sequence[AttemptResult], what: str) -> None:
    """Raise InfraError, with the first reason, where not one attempt counts: that is no rate of 0%."""
    if results and not any(result.counts for result in results):
        reason = next((result.error for result in results if result.error), "unknown")
        raise InfraError(f"{what}: none of {len(results)} attempts counts; the first failed with: {reason}")
