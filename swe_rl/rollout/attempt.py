"""One attempt at one task: allocate, agent, collect, close; then grade. The fresh starts after an infra_error are here.

An attempt never raises for what happens inside it: whatever goes wrong that is not the policy's doing becomes the
verdict `infra_error` with its traceback (design rule 3). Only wrong settings and cancellation pass through.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.agent.loop import run_agent
from swe_rl.errors import UsageError
from swe_rl.grading.grader import grade_patch
from swe_rl.grading.patch_extract import extract_patch
from swe_rl.grading.verdict import GradeResult
from swe_rl.owned_tasks import uninterrupted, within
from swe_rl.rollout.artifacts import attempt_name, write_attempt
from swe_rl.rollout.budget import AttemptBudget
from swe_rl.rollout.runtime import Runtime
from swe_rl.sandbox.protocol import Sandbox
from swe_rl.types import Task, Trajectory, Verdict

log = logging.getLogger(__name__)
RETRY_PAUSE = 0.5  # seconds before the first fresh start; doubled for each further one


@dataclass
class Attempt:
    """State of one attempt. `failures` lists the starts that an infra_error ended, with their tracebacks."""

    task: Task
    group: int
    index: int
    sampling_params: dict[str, Any]
    budget: AttemptBudget
    attempt_id: str = ""
    trajectory: Trajectory = field(init=False)
    failures: list[dict[str, str]] = field(default_factory=list)
    directory: Path | None = None
    grading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.trajectory = Trajectory(self.task)

    @property
    def verdict(self) -> Verdict | None:
        return self.trajectory.verdict

    def forget_prompts(self) -> None:
        """Drop each turn's own copy of its prompt, once the samples are made: they grow with the square of the attempt."""
        for turn in self.trajectory.turns:
            turn.prompt_ids = []

    def release(self) -> None:
        """Drop all but the outcome, once that is saved: further samples of the attempt ask for the reward only."""
        trajectory = self.trajectory
        trajectory.turns, trajectory.segments, trajectory.messages, trajectory.steps = [], [], [], []
        trajectory.patch = b""


async def run_attempt(
    runtime: Runtime, task: Task, sampling_params: dict[str, Any], *, group: int, index: int, directory: Path | None
) -> Attempt:
    """Let the agent work on `task`, afresh after an infra_error while retries and time last; not graded yet.

    directory: where the attempt's folder is made, or None. The patch is that of the last start.
    """
    attempt = Attempt(task, group, index, dict(sampling_params), AttemptBudget(runtime.config))
    for start in range(1 + runtime.config.swe_infra_retries):
        if start:
            await asyncio.sleep(attempt.budget.total.bound(RETRY_PAUSE * 2 ** (start - 1)))
        attempt.attempt_id = attempt_name(task.instance_id, group, index, time.time_ns())
        attempt.trajectory = await _start(runtime, attempt)
        if attempt.verdict is not Verdict.INFRA_ERROR:
            break
        attempt.failures.append(_failure(attempt.trajectory.verdict_detail))
        log.warning("%s: infra_error: %s", attempt.attempt_id, attempt.failures[-1]["error"])
        if not attempt.budget.allows_retry():
            break
    if directory is not None:
        attempt.directory = directory / attempt.attempt_id
        await save_attempt(runtime, attempt)
    return attempt


async def _start(runtime: Runtime, attempt: Attempt) -> Trajectory:
    """One start in a fresh sandbox."""
    trajectory = Trajectory(attempt.task)
    timings: dict[str, float] = {}
    sandbox: Sandbox | None = None
    stage = "allocate"
    deadline = attempt.budget.agent()
    try:
        with _timed(runtime, timings, stage):
            opening = runtime.provider.open(attempt.task, deadline=deadline, purpose="agent")
            bound = deadline.remaining() + attempt.budget.close_seconds
            sandbox = await within(bound, opening, lambda late: _close(late, attempt))
        stage = "agent"
        with _timed(runtime, timings, stage):
            trajectory = await run_agent(
                attempt.task,
                sandbox,
                runtime.engine,
                runtime.tokenizer,
                runtime.config,
                attempt.sampling_params,
                deadline,
                attempt_id=attempt.attempt_id,
            )
        if trajectory.verdict is None:
            stage = "collect"
            with _timed(runtime, timings, stage):
                collecting = attempt.budget.collect().remaining()
                trajectory.patch = await extract_patch(
                    attempt.task, sandbox, timeout=collecting, max_bytes=runtime.config.swe_max_patch_bytes
                )
    except UsageError:
        raise
    except Exception as error:
        _set_infra_error(trajectory, stage, error)
    finally:
        if sandbox is not None:
            with _timed(runtime, timings, "close"):
                await uninterrupted(_close(sandbox, attempt))
    trajectory.timings |= timings
    return trajectory


async def grade_attempt(runtime: Runtime, attempt: Attempt) -> Verdict:
    """The attempt's verdict: graded once, however often and from however many samples it is asked for.

    Who asks while it is being graded waits for its end, and takes no place meanwhile.
    """
    async with attempt.grading:
        if attempt.verdict is None:
            async with runtime.places.grading():
                await _grade(runtime, attempt)
            await save_attempt(runtime, attempt)
        assert attempt.verdict is not None
        return attempt.verdict


async def _grade(runtime: Runtime, attempt: Attempt) -> None:
    """Set the verdict. After an infra_error the same patch is graded afresh while retries and time last."""
    trajectory, timings = attempt.trajectory, attempt.trajectory.timings
    for start in range(1 + runtime.config.swe_infra_retries):
        with _timed(runtime, timings, "grade"):
            grade = await _grade_once(runtime, attempt)
        if grade.verdict is not Verdict.INFRA_ERROR:
            break
        failure = _failure(grade.detail)
        attempt.failures.append(failure)
        log.warning("%s: grading failed: %s", attempt.attempt_id, failure["error"])
        if start == runtime.config.swe_infra_retries or not attempt.budget.allows_regrade():
            break
        await asyncio.sleep(attempt.budget.total.bound(RETRY_PAUSE * 2**start))
    trajectory.verdict = grade.verdict
    trajectory.verdict_detail |= grade.detail
    trajectory.reward_not_submitted = runtime.config.reward_not_submitted


async def _grade_once(runtime: Runtime, attempt: Attempt) -> GradeResult:
    deadline = attempt.budget.grade()
    try:
        grading = grade_patch(
            attempt.task,
            attempt.trajectory.patch,
            runtime.provider,
            runtime.config,
            deadline,
            tests_seconds=attempt.budget.tests_seconds,
        )
        result = await asyncio.wait_for(grading, deadline.remaining() + attempt.budget.close_seconds)
    except UsageError:
        raise
    except Exception as error:
        return GradeResult(Verdict.INFRA_ERROR, _error_detail("grade", error))
    if result.verdict is Verdict.INFRA_ERROR:
        detail = result.detail
        result.detail = {"stage": "grade", "error": f"{detail.get('kind')}: {detail.get('reason')}", **detail}
    return result


async def save_attempt(runtime: Runtime, attempt: Attempt) -> None:
    """Write or rewrite the attempt's folder, if it has one. A full disk ends the run: OSError becomes the infra_error
    of every attempt, and the step reports it."""
    if attempt.directory is None:
        return
    try:
        await asyncio.to_thread(write_attempt, attempt.directory, attempt.trajectory, attempt_meta(runtime, attempt))
    except OSError as error:
        _set_infra_error(attempt.trajectory, "save", error)


def attempt_meta(runtime: Runtime, attempt: Attempt) -> dict[str, Any]:
    """The contents of meta.json: how the attempt was made and what it cost."""
    trajectory, config = attempt.trajectory, runtime.config
    versions = {version for turn in trajectory.turns for version in turn.weight_versions}
    return {
        "attempt_id": attempt.attempt_id,
        "instance_id": attempt.task.instance_id,
        "data_source": attempt.task.data_source,
        "task_metadata": attempt.task.metadata,
        "group": attempt.group,
        "index": attempt.index,
        "model": config.hf_checkpoint,
        "config_hash": runtime.config_hash,
        "sampling_params": attempt.sampling_params,
        "weight_versions": sorted(versions),
        "exit_status": trajectory.exit_status,
        "verdict": trajectory.verdict.value if trajectory.verdict else None,
        "tokens": {
            "sampled": sum(len(turn.output_ids) for turn in trajectory.turns),
            "trained": sum(sum(segment.loss_mask) for segment in trajectory.segments),
            "dropped": trajectory.dropped_tokens,
            "cached": sum(turn.cached_tokens for turn in trajectory.turns),
            "segments": len(trajectory.segments),
            "forks": [segment.fork_cause for segment in trajectory.segments if segment.fork_cause],
        },
        "failures": attempt.failures,
        "timings": {name: round(seconds, 4) for name, seconds in trajectory.timings.items()},
        "settings": {
            name: getattr(config, name)
            for name in (
                *(
                    "swe_agent_config",
                    "step_limit",
                    "swe_command_timeout",
                    "swe_observation_chars",
                    "swe_cm_head_ratio",
                ),
                *("rollout_max_context_len", "rollout_max_response_len", "swe_rollout_timeout", "swe_eval_timeout"),
                *("dynamic_history", "sandbox", "engine", "seed"),
            )
        },
    }


async def _close(sandbox: Sandbox, attempt: Attempt) -> None:
    """Close within the bound. What cannot be closed now stays in the provider's books, whose reaper ends it."""
    try:
        await asyncio.wait_for(sandbox.close(), attempt.budget.close_seconds)
    except Exception as error:
        log.warning("%s: closing its sandbox failed: %s: %s", attempt.attempt_id, type(error).__name__, error)


@contextlib.contextmanager
def _timed(runtime: Runtime, timings: dict[str, float], stage: str):  # type: ignore[no-untyped-def]
    """Count the attempt in `stage` for the progress bar and add the seconds to `timings`."""
    started = time.monotonic()
    with runtime.progress.stage(stage):
        try:
            yield
        finally:
            timings[stage] = timings.get(stage, 0.0) + time.monotonic() - started


def _error_detail(stage: str, error: BaseException) -> dict[str, str]:
    return {
        "stage": stage,
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }


def _set_infra_error(trajectory: Trajectory, stage: str, error: BaseException) -> None:
    trajectory.exit_status = "infra_error"
    trajectory.verdict = Verdict.INFRA_ERROR
    trajectory.verdict_detail |= _error_detail(stage, error)


def _failure(detail: dict[str, Any]) -> dict[str, str]:
    return {name: str(detail.get(name, "")) for name in ("stage", "error", "traceback")}
