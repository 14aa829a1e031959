"""Groups of attempts at one task. One bad attempt never ends a step; a dead engine does, soon and with its reason."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from dataclasses import dataclass
from typing import Any

from swe_rl.config import Config
from swe_rl.errors import InfraError
from swe_rl.owned_tasks import gather_owned
from swe_rl.rollout.functions import RolloutFunctions
from swe_rl.rollout.run_one import AttemptResult, run_one
from swe_rl.rollout.runtime import Runtime
from swe_rl.types import Sample, Task


class FailureGuard:
    """Ends a step in which nothing works any more: `limit` infra_errors in a row, from half of its `tasks` at least or for
    longer than the `seconds` of an attempt.

    A few tasks that cannot be opened fail at once, all attempts of them, while the first attempts at the others still work.
    """

    def __init__(self, limit: int, tasks: int, seconds: float) -> None:
        self._limit, self._tasks, self._seconds = limit, tasks, seconds
        self._errors: list[str] = []
        self._began = 0.0  # when the first attempt of the row failed
        self._failing: set[str] = set()
        self._ended = ""  # the reason, once: attempts that fail while the others are being cancelled do not change it

    def note(self, result: AttemptResult) -> None:
        """Raise InfraError, with the first reason, when the row is full."""
        if result.counts:
            self._errors.clear()
            self._failing.clear()
            return
        if not self._errors:
            self._began = time.monotonic()
        self._errors.append(result.error)
        self._failing.add(result.instance_id)
        widespread = 2 * len(self._failing) >= self._tasks or time.monotonic() - self._began > self._seconds
        if not self._ended and len(self._errors) >= self._limit and widespread:
            self._ended = (
                f"{len(self._errors)} attempts in a row, at {len(self._failing)} tasks, failed for reasons of the "
                f"infrastructure; the first: {self._errors[0]}"
            )
        if self._ended:
            raise InfraError(self._ended)


@dataclass
class GroupRunner:
    """Runs attempts and groups, as many at once as the runtime has places."""

    runtime: Runtime
    functions: RolloutFunctions

    async def run_group(
        self,
        task: Task,
        group: int,
        attempts: int,
        sampling_params: dict[str, Any],
        guard: FailureGuard,
        *,
        label: str = "train",
        attempts_dir: str = "",
    ) -> list[AttemptResult]:
        """`attempts` attempts at `task`, in order of their index. `label` separates the seeds of evaluations."""
        metadata = {"instance": dataclasses.asdict(task), "task": task, "data_source": task.data_source}
        if attempts_dir:
            metadata["attempts_dir"] = attempts_dir
        coroutines = []
        for index in range(attempts):
            sample = Sample(
                group_index=group,
                index=index,
                rollout_id=group * attempts + index,
                prompt=task.problem_statement,
                metadata=dict(metadata),
            )
            seed = attempt_seed(self.runtime.config.seed, label, group, index)
            coroutines.append(self._run(task, sample, {**sampling_params, "sampling_seed": seed}, guard))
        return await gather_owned(coroutines)

    async def _run(
        self, task: Task, sample: Sample, sampling_params: dict[str, Any], guard: FailureGuard
    ) -> AttemptResult:
        async with self.runtime.places.attempt():
            result = await run_one(self.runtime, self.functions, task, sample, sampling_params)
        self.runtime.progress.finish(result.reward, result.verdict)
        guard.note(result)
        return result


def attempt_seed(seed: int, *parts: object) -> int:
    """A sampling seed in [0, 2^31) for one attempt, a function of the run's seed and the attempt's place only."""
    digest = hashlib.sha256("/".join(map(str, (seed, *parts))).encode()).digest()
    return int.from_bytes(digest[:4], "big") % 2**31


def sampling_params_of(config: Config) -> dict[str, Any]:
    """The settings' sampling parameters under SGLang's names."""
    return {
        "temperature": config.rollout_temperature,
        "top_p": config.rollout_top_p,
        "top_k": config.rollout_top_k,
        "max_new_tokens": config.rollout_max_response_len,
    }
