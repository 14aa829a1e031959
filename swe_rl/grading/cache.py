"""Verdicts of equal patches are shared: attempts of one group often end in the same bytes, and grading dominates small tasks.

Only for tasks certified as not flaky, only verdicts that another grading would repeat, and never across versions of the grader.
Equal patches that are graded at the same time share one grading.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from swe_rl.config.grading import GradingSettings
from swe_rl.deadline import Deadline
from swe_rl.grading.verdict import GradeResult
from swe_rl.sandbox import starting_state
from swe_rl.types import Task, Verdict

CERTAIN = frozenset({Verdict.RESOLVED, Verdict.UNRESOLVED, Verdict.PATCH_REJECTED, Verdict.TAMPERED})
CAPACITY = 4096
# Settings that can change a verdict: policy, time, image, what a local sandbox allows
GRADED_SETTINGS = (
    *(name for name in GradingSettings.model_fields if name not in ("verdict_cache", "reward_not_submitted")),
    "swe_eval_timeout",
    "swe_docker_registry",
    "swe_image_template",
    "sandbox_max_processes",
    "sandbox_memory_mb",
    "sandbox_file_mb",
)
# Entries of Task.metadata that change a grading: interpreter, starting state, files that swebench's script fetches
GRADED_METADATA = ("python", "bug_patch", "image_assets")


@functools.cache
def grader_version() -> str:
    """Changes with every file that can change a verdict: the grader's, and what makes the state that is graded."""
    digest = hashlib.sha256()
    own = sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".sh"))
    for path in (*own, Path(starting_state.__file__), starting_state.SCRIPT):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_key(task: Task, patch: bytes, where: str) -> str:
    """What a verdict depends on: the task as the grader sees it, the patch as it is applied, the kind of sandbox, the grader."""
    digest = hashlib.sha256()
    parts = (
        grader_version(), where, task.instance_id, task.image, task.archive, task.base_commit, task.workdir, task.eval_script,
        task.test_patch, task.log_parser, "\n".join(task.fail_to_pass), "\n".join(task.pass_to_pass),
        "\n".join(task.test_files), repr(sorted(task.env.items())),
        *(str(task.metadata.get(name, "")) for name in GRADED_METADATA),
    )  # fmt: skip
    for part in parts:
        data = part.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(8, "big") + data)
    digest.update(patch)
    return digest.hexdigest()


class VerdictCache:
    """Bounded, least recently used first out. `graded`, `hits`, `shared` count for the metrics."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._known: OrderedDict[str, GradeResult] = OrderedDict()
        self._running: dict[str, asyncio.Task[GradeResult]] = {}
        self._waiting: dict[str, int] = {}
        self._capacity = capacity
        self.graded = self.hits = self.shared = 0

    async def get(self, key: str, grade: Callable[[], Awaitable[GradeResult]], deadline: Deadline) -> GradeResult:
        """The remembered verdict, that of an equal grading in progress, or `grade()`'s.

        A shared grading that turns out uncertain, or is later than `deadline`, is not used: `grade()` decides then. Tests that
        ran out of their time are believed by those that waited, so that equal patches get one verdict, but not remembered.
        """
        if known := self._known.get(key):
            self._known.move_to_end(key)
            self.hits += 1
            return _marked(known, "remembered")
        running = self._running.get(key)
        if running is not None and running.get_loop() is asyncio.get_running_loop():
            self.shared += 1
            result = await self._join(key, running, deadline)
            if result is not None and (result.verdict in CERTAIN or result.verdict is Verdict.TEST_TIMEOUT):
                return _marked(result, "shared")
            self.shared -= 1
            self.graded += 1
            return await grade()
        self.graded += 1
        running = asyncio.ensure_future(_call(grade))
        self._running[key] = running
        try:
            result = await self._join(key, running, None)
        finally:
            if self._running.get(key) is running and running.done():
                del self._running[key]
        assert result is not None
        if result.verdict in CERTAIN:
            self._known[key] = result
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return result

    async def _join(
        self, key: str, running: asyncio.Task[GradeResult], deadline: Deadline | None
    ) -> GradeResult | None:
        """Wait for a grading; whoever leaves last ends it, so that a cancelled attempt does not end another's grading."""
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            return await asyncio.wait_for(asyncio.shield(running), deadline.remaining() if deadline else None)
        except (asyncio.TimeoutError, TimeoutError):
            return None
        finally:
            self._waiting[key] -= 1
            if self._waiting[key] == 0:
                del self._waiting[key]
                if not running.done():
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
                if self._running.get(key) is running:
                    del self._running[key]

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and the share of verdicts that cost nothing."""
        asked = self.graded + self.hits + self.shared
        share = (self.hits + self.shared) / asked if asked else 0.0
        return {"graded": self.graded, "remembered": self.hits, "shared": self.shared, "cache_share": share}


async def _call(grade: Callable[[], Awaitable[GradeResult]]) -> GradeResult:
    return await grade()


def _marked(result: GradeResult, how: str) -> GradeResult:
    return replace(result, detail={**result.detail, "cached": how}, seconds=dict.fromkeys(result.seconds, 0.0))


shared_cache = VerdictCache()
