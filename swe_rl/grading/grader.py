"""From a patch to a verdict: policy, a fresh sandbox, the tests; never a verdict about the policy for a fault of ours."""

from __future__ import annotations

import time
from dataclasses import replace

from swe_rl.config.grading import GradingSettings
from swe_rl.deadline import Deadline
from swe_rl.errors import InfraError
from swe_rl.grading.cache import VerdictCache, cache_key, shared_cache
from swe_rl.grading.evaluate import run_tests
from swe_rl.grading.patch_policy import PolicyResult, apply_policy
from swe_rl.grading.verdict import GradeResult
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.starting_state import StartingStateError
from swe_rl.types import Task, Verdict

TRIES = 2  # fresh sandboxes for one grading when the first is lost; after that the attempt's own retries decide


async def grade_patch(
    task: Task,
    patch: bytes,
    provider: SandboxProvider,
    settings: GradingSettings,
    deadline: Deadline,
    *,
    cache: VerdictCache = shared_cache,
    tests_seconds: float | None = None,
) -> GradeResult:
    """Grade one patch in a sandbox of its own. tests_seconds: see `run_tests`.

    Never raises for what the patch or the sandbox does: a lost sandbox or an expired deadline is `infra_error` with
    `detail["kind"]` (the error's class) and `detail["reason"]`; tests that run past `deadline` are `test_timeout`.
    """
    started = time.monotonic()
    policy = apply_policy(task, patch, settings)
    if policy.verdict is not None:
        return GradeResult(policy.verdict, policy.detail(), seconds={"total": time.monotonic() - started})

    async def grade() -> GradeResult:
        # Of what policy found only the patch: other patches that leave the same one share this result.
        return await _graded(task, PolicyResult(policy.patch), provider, deadline, tests_seconds)

    if settings.verdict_cache and task.flaky is False:
        result = await cache.get(cache_key(task, policy.patch, provider.name), grade, deadline)
    else:
        result = await grade()
    return replace(result, detail={**policy.detail(), **result.detail})


async def grade_empty(
    task: Task, provider: SandboxProvider, deadline: Deadline, *, tests_seconds: float | None = None
) -> GradeResult:
    """The tests on the untouched repository: certification asks whether they fail without a fix."""
    return await _graded(task, PolicyResult(), provider, deadline, tests_seconds)


async def _graded(
    task: Task, policy: PolicyResult, provider: SandboxProvider, deadline: Deadline, tests_seconds: float | None
) -> GradeResult:
    result = await _once(task, policy, provider, deadline, tests_seconds)
    for _ in range(TRIES - 1):
        lost = result.detail.get("kind") not in (None, "DeadlineExceeded", StartingStateError.__name__)
        if result.verdict is not Verdict.INFRA_ERROR or not lost or deadline.expired():
            break
        result = await _once(task, policy, provider, deadline, tests_seconds)
    return result


async def _once(
    task: Task, policy: PolicyResult, provider: SandboxProvider, deadline: Deadline, tests_seconds: float | None
) -> GradeResult:
    seconds: dict[str, float] = {}
    started = last = time.monotonic()

    def stage(name: str) -> None:
        nonlocal last
        now = time.monotonic()
        seconds[name] = now - last
        last = now

    try:
        deadline.check("grade")
        sandbox = await provider.open(task, deadline=deadline, purpose="grade")
        stage("open")
        try:
            result = await run_tests(task, policy, sandbox, deadline, tests_seconds=tests_seconds)
        finally:
            stage("evaluate")
            await sandbox.close()
            stage("close")
    except InfraError as error:
        result = _infra(error)
    result.seconds = {**result.seconds, **seconds, "total": time.monotonic() - started}
    return result


def _infra(error: InfraError) -> GradeResult:
    return GradeResult(Verdict.INFRA_ERROR, {"kind": type(error).__name__, "reason": str(error)})
