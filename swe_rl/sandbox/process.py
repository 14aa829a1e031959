"""Sandboxes without isolation: a private copy of the repository and processes that certainly end.

For machines where bubblewrap cannot be used. It protects against accidents of a command's own making (endless output,
background children, hanging), not against a command that wants to read or change what the user can.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.sandbox.local import Launch, LocalProvider
from swe_rl.sandbox.local_box import MARK, Box
from swe_rl.sandbox.local_run import wait_exit
from swe_rl.sandbox.local_system import interpreter
from swe_rl.sandbox.pid_namespace import end_namespace
from swe_rl.types import Task

log = logging.getLogger(__name__)

RUNNER = Path(__file__).with_name("runner.py")
STOP_BOUND = 5.0  # seconds the supervisor may take to end its descendants before it is killed itself


@functools.cache
def pid_namespace() -> list[str]:
    """A prefix that gives a command a PID namespace where util-linux and the kernel allow it, else nothing."""
    program, owned = shutil.which("unshare"), shutil.which("setpriv")
    if program is None or owned is None:
        return []
    # `unshare` stays outside as the namespace's parent and would outlive a run that is killed; so it dies with it.
    prefix = [owned, "--pdeathsig", "KILL", program, *([] if os.getuid() == 0 else ["--user", "--map-current-user"])]
    prefix += ["--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        done = subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return prefix if done.returncode == 0 else []


class ProcessProvider(LocalProvider):
    """`--sandbox process`."""

    name = "process"

    def __init__(self, settings: SandboxSettings, tools_env: Path) -> None:
        super().__init__(settings, tools_env)
        self._namespace = pid_namespace()
        reach = "" if self._namespace else ", signal every process of yours (`kill -9 -1` ends your session)"
        self.warning = (
            "sandbox=process does not isolate: commands can read and write every file that you can (tests and fixes of the "
            f"tasks included), use the network{reach}. Use it only with policies that you trust; install bubblewrap for real "
            "sandboxes"
        )
        log.warning(self.warning)

    def workdir(self, box: Box, task: Task) -> str:
        return str(box.repo)

    def base_env(self, box: Box) -> dict[str, str]:
        return {
            "PATH": f"{self.tools_env}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(box.home),
            "USER": "agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PAGER": "cat",
            "GIT_PAGER": "cat",
            "TMPDIR": str(box.tmp),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "agent",
            "GIT_AUTHOR_EMAIL": "agent@sandbox",
            "GIT_COMMITTER_NAME": "agent",
            "GIT_COMMITTER_EMAIL": "agent@sandbox",
            MARK: box.path.name,
        }

    def launch(self, box: Box, task: Task, argv: Sequence[str]) -> Launch:
        async def kill(process: subprocess.Popen[bytes]) -> None:
            await self._end(process, box)

        command = [*self._namespace, interpreter(), "-I", "-S", str(RUNNER), *argv]
        return Launch(argv=[os.fsencode(part) for part in command], kill=kill, cwd=str(box.path))

    async def _end(self, process: subprocess.Popen[bytes], box: Box) -> None:
        if self._namespace:
            if process.poll() is None:
                await end_namespace(process, first_child(process.pid))
            return
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(wait_exit(process), STOP_BOUND)
        if process.poll() is None or process.returncode < 0:
            # The supervisor did not end by itself (a command killed it): find what it left by its mark.
            process.kill()
            await asyncio.to_thread(kill_marked, box.path.name)


def first_child(pid: int) -> int | None:
    """The child of `unshare`: the first process of its namespace; None where it has none (yet)."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            return child.pid
    return None


def kill_marked(name: str) -> None:
    """Kill every process that carries a box's mark in its environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == name:
                process.kill()
