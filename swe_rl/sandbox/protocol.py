"""The one sandbox protocol (design rule 5). Agent, grader and patch extraction know nothing below it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from swe_rl.deadline import Deadline
from swe_rl.types import ExecResult, Task

DEFAULT_OUTPUT_LIMIT = 1_000_000  # bytes of output kept per command: half head, half tail

# Seconds beyond a command's timeout in which a container's supervisor answers: the image's login shell, once (60), then
# killing what runs and ending its output. Whoever waits behind further servers waits HOP_GRACE longer for each.
ANSWER_GRACE = 80.0
HOP_GRACE = 10.0


def cut_line(dropped: int) -> str:
    """What stands in an output in place of the `dropped` bytes of its middle."""
    return f"\n[... {dropped} bytes of output left out ...]\n"


LONGEST_LEASE = 7 * 86400.0  # seconds that a pool grants at once; heartbeats carry a lease further


@runtime_checkable
class Sandbox(Protocol):
    """One isolated place where commands run. Every call returns in its time or raises `SandboxError`."""

    workdir: str

    async def exec(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run `command` with bash in a new session, stdin closed, in `cwd` (default: the task's workdir).

        After `timeout` seconds the whole process group is dead and the result says `timed_out` with returncode 124.
        Background children do not hold the answer. Raises SandboxError if the sandbox itself is gone.
        """
        ...

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file of any size (parents are made); relative paths are below `workdir`."""
        ...

    async def download(self, path: str, *, max_bytes: int) -> bytes:
        """Read a file; raises SandboxError if it is missing or larger than `max_bytes`."""
        ...

    async def close(self) -> None:
        """End the sandbox and everything in it. Idempotent."""
        ...


class SandboxProvider(Protocol):
    """Opens sandboxes: local (bubblewrap, process) or through the pool (containers on remote nodes)."""

    name: str

    async def open(self, task: Task, *, deadline: Deadline, purpose: str) -> Sandbox:
        """A fresh sandbox holding the task's repository at its base commit. `purpose` is "agent", "grade" or "certify".

        Raises SandboxUnavailable when none can be had before `deadline`.
        """
        ...

    async def aclose(self) -> None:
        """Close every sandbox that this provider still holds."""
        ...
