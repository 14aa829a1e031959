"""Grades gold and empty patches of many tasks, a bounded number at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.errors import DataError
from swe_rl.grading.grader import grade_empty, grade_patch
from swe_rl.grading.verdict import GradeResult
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.starting_state import StartingStateError
from swe_rl.tasks.certify.digests import image_digest
from swe_rl.tasks.certify.journal import Journal, task_key
from swe_rl.tasks.certify.outcome import BROKEN, Outcome, Run, judge_runs
from swe_rl.types import Task, Verdict

OPEN_SECONDS = 300.0  # for a sandbox to open (an image may have to be pulled), beside the tests' own time
INFRA_RETRIES = 2


async def certify_tasks(
    tasks: Sequence[Task],
    provider: SandboxProvider,
    config: Config,
    journal: Journal,
    *,
    repeat: int,
    concurrency: int,
    on_done: Callable[[Task, Outcome], None],
) -> dict[str, Outcome]:
    """Outcomes by instance id. Finished tasks of `journal` are not run again; `on_done` is called once a task."""
    outcomes: dict[str, Outcome] = {}
    waiting = iter(tasks)
    config = config.model_copy(update={"verdict_cache": False})  # each grading must run

    async def worker() -> None:
        for task in waiting:
            key = task_key(task, repeat, provider.name, config)
            outcome = journal.finished.get(key)
            if outcome is None:
                outcome = await certify_task(task, provider, config, repeat=repeat)
                journal.add(key, outcome)
            outcomes[task.instance_id] = outcome
            on_done(task, outcome)

    workers = [asyncio.create_task(worker()) for _ in range(max(1, min(concurrency, len(tasks))))]
    try:
        await asyncio.gather(*workers)
    finally:
        for work in workers:
            work.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return outcomes


async def certify_task(task: Task, provider: SandboxProvider, config: Config, *, repeat: int) -> Outcome:
    """The gold patch `repeat` times and the empty patch once, each in a fresh sandbox."""
    if not task.patch.strip():
        return Outcome(task.instance_id, BROKEN, reason="the row has no gold patch")
    gold: list[Run] = []
    for _ in range(repeat):
        gold.append(await _graded(task, task.patch.encode("utf-8"), provider, config))
        if gold[-1].verdict == Verdict.INFRA_ERROR:
            return judge_runs(task, gold, [])
    empty = await _graded(task, b"", provider, config)
    return judge_runs(task, gold, [empty], await image_digest(config, provider.name, task.image))


async def _graded(task: Task, patch: bytes, provider: SandboxProvider, config: Config) -> Run:
    """One grading; an infrastructure failure is tried again, since it says nothing about the task."""
    reason = ""
    for attempt in range(INFRA_RETRIES + 1):
        if attempt:
            await asyncio.sleep(min(30.0, 2.0**attempt))
        started = time.monotonic()
        deadline, tests_seconds = Deadline(OPEN_SECONDS + config.swe_eval_timeout), config.swe_eval_timeout
        try:
            if patch:
                result = await grade_patch(task, patch, provider, config, deadline, tests_seconds=tests_seconds)
            else:
                result = await grade_empty(task, provider, deadline, tests_seconds=tests_seconds)
        except DataError as error:  # e.g. no way to make an eval script: the row's fault
            return Run(Verdict.UNRESOLVED.value, reason=str(error))
        seconds = time.monotonic() - started
        if result.detail.get("kind") == StartingStateError.__name__:  # the row's fault, whatever the sandbox
            return Run(Verdict.UNRESOLVED.value, reason=_reason(result))
        if result.verdict is not Verdict.INFRA_ERROR:
            return Run(result.verdict.value, dict(result.tests), round(seconds, 3), _reason(result))
        reason = _reason(result)
    return Run(Verdict.INFRA_ERROR.value, reason=reason)


def _reason(result: GradeResult) -> str:
    problems = result.detail.get("problems") or result.detail.get("reason") or ""
    if isinstance(problems, (list, tuple)):
        problems = "; ".join(str(problem) for problem in problems)
    return str(problems)[:500]
