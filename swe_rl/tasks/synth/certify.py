"""Certify recipes: the gold patch must resolve its task every time, the untouched repository never."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from rich.progress import Progress

from swe_rl.config import Config
from swe_rl.config.load import load_config
from swe_rl.deadline import Deadline
from swe_rl.errors import InfraError
from swe_rl.grading.grader import grade_empty, grade_patch
from swe_rl.grading.verdict import GradeResult
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.provider import open_provider
from swe_rl.tasks.synth.recipe import Recipe, build_task
from swe_rl.types import Task, Verdict

GOLD_RUNS = 3
GRADE_TIMEOUT = 180.0
CONCURRENCY = 3
SAVE_EVERY = 9


async def certify_task(task: Task, provider: SandboxProvider, settings: Config) -> tuple[bool, bool]:
    """(certified, flaky) of one task by the real grader, in fresh sandboxes, without remembered verdicts.

    Raises InfraError where the infrastructure failed: that says nothing about the task.
    """
    task = dataclasses.replace(task, flaky=None, certified=None)
    gold = [
        _known(await grade_patch(task, task.patch.encode(), provider, settings, Deadline(GRADE_TIMEOUT)))
        for _ in range(GOLD_RUNS)
    ]
    resolved = gold.count(Verdict.RESOLVED)
    if resolved < GOLD_RUNS:
        return False, resolved > 0
    empty = _known(await grade_empty(task, provider, Deadline(GRADE_TIMEOUT)))
    return empty is Verdict.UNRESOLVED, False


def _known(result: GradeResult) -> Verdict:
    if result.verdict is Verdict.INFRA_ERROR:
        raise InfraError(f"grading failed: {result.detail.get('reason')}")
    return result.verdict


def certify_recipes(
    recipes: list[Recipe], tree: dict[str, bytes], out: Path, package: str, save: Callable[[], None]
) -> None:
    """Certify those recipes that never were, in place; `save` is called now and then, so that an interruption loses little.

    The sandbox is that of the environment (SWE_RL_SANDBOX). Raises InfraError after the rest of a batch is saved.
    """
    waiting = [index for index, recipe in enumerate(recipes) if recipe.certified is None]
    if waiting:
        asyncio.run(_certify(waiting, recipes, tree, out, package, save))


async def _certify(
    waiting: list[int],
    recipes: list[Recipe],
    tree: dict[str, bytes],
    out: Path,
    package: str,
    save: Callable[[], None],
) -> None:
    settings = load_config([]).config.model_copy(update={"verdict_cache": False})
    provider = await open_provider(settings)
    gate = asyncio.Semaphore(CONCURRENCY)
    try:
        with Progress(disable=not sys.stderr.isatty()) as progress:
            bar = progress.add_task(f"certify {package}", total=len(waiting))

            async def one(index: int) -> None:
                async with gate:
                    recipe = recipes[index]
                    task = build_task(recipe, tree, (out / "archives" / f"{recipe.id}.tar").resolve(), package=package)
                    certified, flaky = await certify_task(task, provider, settings)
                    recipes[index] = dataclasses.replace(recipe, certified=certified, flaky=flaky)
                    progress.advance(bar)

            for low in range(0, len(waiting), SAVE_EVERY):
                batch = [one(index) for index in waiting[low : low + SAVE_EVERY]]
                results = await asyncio.gather(*batch, return_exceptions=True)
                save()
                for result in results:
                    if result is not None:
                        raise result
    finally:
        await provider.aclose()
