"""The rollout manager as a Ray actor: a thin shell around `Rollouts` that owns the runtime of its process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import ray

from swe_rl.config import Config
from swe_rl.engine.client import EngineClient
from swe_rl.errors import ConfigError
from swe_rl.observe.logs import set_up_logging
from swe_rl.owned_tasks import cancel_all
from swe_rl.rollout.batch import RolloutBatch
from swe_rl.rollout.data_source import TaskSource
from swe_rl.rollout.functions import load_functions
from swe_rl.rollout.rollouts import Rollouts
from swe_rl.rollout.runtime import open_runtime, set_runtime
from swe_rl.tasks.load import load_tasks
from swe_rl.types import Task


@ray.remote(num_cpus=0, max_restarts=0)
class RolloutManager:
    """Makes rollout steps and evaluations. `config.engine_urls` must name running engines.

    Methods are coroutines and may overlap: `rollout(k + 1)` while step k trains, `progress()` at any time. `ray.cancel` of
    a call ends its attempts and closes their sandboxes; `close` ends the rest.
    """

    def __init__(self, config: Config) -> None:
        set_up_logging(config)
        self._config = config
        self._data = ""  # what was read, left out and rejected, as text for a person
        self._starting: asyncio.Task[Rollouts] | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def start(self) -> dict[str, Any]:
        """Read the tasks, connect to the engines, choose the sandboxes; errors of settings and data come from here."""
        rollouts = await self._rollouts()
        provider = rollouts.runtime.provider
        return {
            "sandbox": provider.name,
            "notes": getattr(provider, "notes", []),
            "tasks": len(rollouts.source),
            "data": self._data,
            "attempts_at_once": rollouts.runtime.places.at_once,
        }

    async def rollout(self, step: int) -> RolloutBatch:
        """One step's groups; see `Rollouts.rollout`."""
        with self._owned():
            return await (await self._rollouts()).rollout(step)

    async def evaluate(
        self,
        tasks: str | list[Task] = "",
        *,
        attempts: int = 1,
        temperature: float = 1.0,
        greedy: bool = False,
        label: str = "eval",
        attempts_dir: str = "",
    ) -> list[dict[str, Any]]:
        """Attempt records of `tasks`: a list, a file, or "" for `eval_prompt_data`. See `Rollouts.evaluate`."""
        rollouts = await self._rollouts()
        chosen = tasks if isinstance(tasks, list) else await self._load(tasks or self._config.eval_prompt_data, "eval")
        with self._owned():
            results = await rollouts.evaluate(
                chosen,
                attempts=attempts,
                temperature=0.0 if greedy else temperature,
                label=label,
                attempts_dir=attempts_dir,
            )
        metadata = {task.instance_id: task.metadata for task in chosen}
        return [{**dataclasses.asdict(result), "task_metadata": metadata[result.instance_id]} for result in results]

    async def progress(self) -> dict[str, Any]:
        """Counts by stage and rewards so far; see `StageCounts.snapshot`."""
        if self._starting is None or not self._starting.done():
            return {"stages": {"start": 1}, "expected": 0, "finished": 0, "reward_mean": None, "verdicts": {}}
        return self._starting.result().runtime.progress.snapshot()

    async def set_weight_version(self, version: int) -> None:
        """Tell the client which weights were pushed, for engines that do not stamp a version on every token."""
        client = (await self._rollouts()).runtime.client
        if isinstance(client, EngineClient):
            client.version = version

    async def state_dict(self) -> dict[str, Any]:
        """The task source's position."""
        return (await self._rollouts()).source.state_dict()

    async def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position (`RolloutBatch.data_state` of the last trained step)."""
        (await self._rollouts()).source.load_state_dict(state)

    async def close(self) -> None:
        """End running calls with their attempts, then every sandbox and connection."""
        await cancel_all(self._running)
        if self._starting is None:
            return
        await asyncio.wait([self._starting])
        if not self._starting.cancelled() and self._starting.exception() is None:
            set_runtime(None)
            await self._starting.result().runtime.aclose()

    @contextlib.contextmanager
    def _owned(self) -> Iterator[None]:
        """Register the current call, so that `close` can end it."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)

    async def _rollouts(self) -> Rollouts:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> Rollouts:
        functions = load_functions(self._config)
        tasks = await self._load(self._config.prompt_data, "training")
        runtime = await open_runtime(self._config)
        set_runtime(runtime)
        source = TaskSource(tasks, seed=self._config.seed, shuffle=self._config.rollout_shuffle)
        return Rollouts(runtime, functions, source)

    async def _load(self, path: str, what: str) -> list[Task]:
        if not path:
            raise ConfigError(f"no {what} tasks: set --{'eval-' if what == 'eval' else ''}prompt-data")
        loaded = await asyncio.to_thread(
            load_tasks,
            path,
            only_certified=self._config.only_certified,
            with_scripts=True,
            image_template=self._config.swe_image_template,
        )
        if what == "training":
            self._data = loaded.report()
        return loaded.tasks
