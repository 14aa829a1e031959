"""Git history after the base commit is made unreachable before an agent gets a sandbox: a fix must not be read from it.

Refs, tags, notes, stash, reflogs, remotes, worktrees, alternates and the packed objects behind them go; the proof is that the
object store afterwards holds exactly what HEAD and the index reach.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError
from swe_rl.sandbox.protocol import Sandbox, SandboxProvider
from swe_rl.sandbox.starting_state import needs_preparation, prepare
from swe_rl.types import Task

log = logging.getLogger(__name__)

SCRIPT = Path(__file__).with_name("hide_future.sh")
HIDE_SECONDS = 300.0  # a large repository is packed again


@dataclass(frozen=True)
class HistoryReport:
    """state: "clean" (nothing was there), "hidden" (removed and proven), "failed" (`reason` says why). head: HEAD afterwards."""

    state: str
    objects_removed: int = 0
    head: str = ""
    reason: str = ""


async def hide_future(sandbox: Sandbox, base_commit: str, *, timeout: float = HIDE_SECONDS) -> HistoryReport:
    """Remove what comes after `base_commit` (empty: HEAD) from the repository in the sandbox's workdir.

    Raises SandboxError when the sandbox is lost.
    """
    base = base_commit if re.fullmatch(r"[0-9a-fA-F]{7,64}", base_commit) else ""
    result = await sandbox.exec(f"BASE={base}\n{_script()}", timeout=timeout)
    found = re.findall(r"^swe-rl-history (\w+) (.*)$", result.output, re.MULTILINE)
    if result.timed_out or not found:
        return HistoryReport("failed", reason="timeout" if result.timed_out else result.output[-300:])
    state, rest = found[-1]
    if state == "failed":
        return HistoryReport(state, reason=rest)
    removed, _, head = rest.partition(" ")
    return HistoryReport(state, int(removed), head)


@functools.cache
def _script() -> str:
    return SCRIPT.read_text()


class HardenedProvider:
    """Any provider, with the task's starting state made and future history hidden in every sandbox it opens.

    `counts`: reports by state, for the metrics. `notes`: what a person should know of the choice of `provider`.

    A source (archive or image) that was found clean is not looked at again.
    """

    def __init__(self, provider: SandboxProvider, *, notes: Sequence[str] = ()) -> None:
        self.provider, self.notes = provider, list(notes)
        self.name = provider.name
        self.capacity: int | None = getattr(provider, "capacity", None)  # sandboxes at once, where that is known
        self.counts: Counter[str] = Counter()
        self._clean: dict[tuple[str, str, str], str] = {}  # source: its HEAD

    async def open(self, task: Task, *, deadline: Deadline, purpose: str) -> Any:
        """See `SandboxProvider.open`; the sandbox's `base_commit` says what its patch is compared with.

        Raises SandboxError where an agent's history cannot be hidden.
        """
        sandbox: Any = await self.provider.open(task, deadline=deadline, purpose=purpose)
        source = (task.archive, task.image, task.base_commit)
        prepared = needs_preparation(task)
        if source in self._clean and not prepared:
            sandbox.base_commit = self._clean[source]
            return sandbox
        try:
            await prepare(sandbox, task, purpose, timeout=deadline.bound(HIDE_SECONDS))
            report = await hide_future(sandbox, task.base_commit, timeout=deadline.bound(HIDE_SECONDS))
        except BaseException:
            await sandbox.close()
            raise
        self.counts[report.state] += 1
        # The state of the image, where it is beyond the base commit: what an image's maker changed is not the agent's work.
        sandbox.base_commit = report.head or task.base_commit
        if report.state == "clean" and not prepared:
            self._clean[source] = report.head
        elif report.state == "failed" and purpose == "agent":
            await sandbox.close()
            raise SandboxError(f"{task.instance_id}: history after the base commit cannot be hidden: {report.reason}")
        elif report.state == "failed":
            log.warning("%s: history could not be hidden for %s: %s", task.instance_id, purpose, report.reason)
        return sandbox

    async def aclose(self) -> None:
        await self.provider.aclose()
