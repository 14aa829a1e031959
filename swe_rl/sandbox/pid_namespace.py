"""Ending a PID namespace: the kernel ends all of its processes with the first one, and that takes a moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess

from swe_rl.sandbox.local_run import wait_pidfd

END_BOUND = 5.0  # seconds the kernel may take to end what is left in a PID namespace


async def end_namespace(parent: subprocess.Popen[bytes], first: int | None) -> None:
    """Kill the namespace's first process (`first`: its pid outside, if it has begun), wait until all are gone, then end `parent`.

    `parent` is the process that made the namespace and waits for its first process.
    """
    pidfd = None
    if first is not None:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(first)
    if parent.poll() is None:
        # The parent lives and has not reaped its child: the descriptor is the child's, not that of a recycled pid.
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        else:
            _kill_group(parent)
    if pidfd is not None:
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(wait_pidfd(pidfd), END_BOUND)
    if parent.poll() is None:
        parent.kill()


def _kill_group(parent: subprocess.Popen[bytes]) -> None:
    """End a parent that has not said its child's pid: a child that it has just made is still in its group, and waits for it."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(parent.pid) == parent.pid:  # not reaped, so it is no other's group by now
            os.killpg(parent.pid, signal.SIGKILL)
        else:
            parent.kill()
