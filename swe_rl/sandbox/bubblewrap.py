"""Sandboxes by bubblewrap: every command in namespaces of its own, on a read-only system, with no daemon.

A command sees the system's programs, one Python with pytest and nothing else installed, its task's repository, and private
/tmp and home. It does not see this checkout, other sandboxes, or any site-packages of the host, because copies of a
task's own package there would hold the fix. What it starts ends with it: the PID namespace is the command's own, so
background children do not live on into the next command.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.errors import SandboxError
from swe_rl.sandbox.local import Launch, LocalProvider
from swe_rl.sandbox.local_box import Box
from swe_rl.sandbox.local_run import Finished
from swe_rl.sandbox.local_system import TOOLS_MOUNT, make_etc, parents, system_mounts
from swe_rl.sandbox.pid_namespace import end_namespace
from swe_rl.types import Task

HOME = "/home/agent"
NAMESPACES = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]


@functools.cache
def why_unusable() -> str:
    """Empty where bubblewrap can really be used here, else the reason (tried once per process)."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed (package bubblewrap)"
    root = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"]
    root += ["--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev"]
    command = [
        program,
        *NAMESPACES,
        "--unshare-net",
        *_user_arguments(),
        "--die-with-parent",
        *root,
        "--",
        *_drop(54321),
    ]
    try:
        done = subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run: {error}"
    if done.returncode != 0:
        return f"bubblewrap does not run: {done.stderr.decode(errors='replace').strip()[-300:]}"
    return ""


def _user_arguments() -> list[str]:
    """As root, mounts are made by root and the command runs under a uid of its own; else a user namespace is needed."""
    if os.getuid() == 0:
        return ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return ["--unshare-user"]


def _drop(uid: int) -> list[str]:
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--inh-caps=-all", "--"]


class BubblewrapProvider(LocalProvider):
    """`--sandbox bubblewrap`."""

    name = "bubblewrap"

    def __init__(self, settings: SandboxSettings, tools_env: Path) -> None:
        super().__init__(settings, tools_env)
        self._program = shutil.which("bwrap") or "bwrap"
        self._etc = make_etc(self._root)
        self._mounts = system_mounts(tools_env, self._etc)

    def workdir(self, box: Box, task: Task) -> str:
        return task.workdir

    def sandbox_uid(self) -> int:
        """As root: a random uid without rights anywhere, so that process limits bind and root's rights are out of reach."""
        return 20000 + secrets.randbelow(40000) if os.getuid() == 0 else os.getuid()

    def base_env(self, box: Box) -> dict[str, str]:
        return {
            "PATH": f"{TOOLS_MOUNT}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": HOME,
            "USER": "agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PAGER": "cat",
            "GIT_PAGER": "cat",
            "TMPDIR": "/tmp",
        }

    def launch(self, box: Box, task: Task, argv: Sequence[str]) -> Launch:
        status_read, status_write = os.pipe()
        os.set_blocking(status_read, False)
        command = [self._program, *NAMESPACES, *([] if task.network else ["--unshare-net"]), *_user_arguments()]
        command += [
            "--die-with-parent",
            "--new-session",
            "--hostname",
            "sandbox",
            "--json-status-fd",
            str(status_write),
        ]
        command += self._mounts
        for source, target in ((box.tmp, "/tmp"), (box.home, HOME), (box.repo, task.workdir)):
            command += [*parents(target), "--bind", str(source), target]
        command += ["--remount-ro", "/", "--chdir", "/", "--", *_drop(box.uid), *argv]
        status = _Status(status_read)

        def close() -> None:
            os.close(status_read)
            os.close(status_write)

        return Launch(
            argv=[os.fsencode(part) for part in command],
            kill=status.end_namespace,
            pass_fds=[status_write],
            check=status.exit_code,
            close=close,
        )

    async def aclose(self) -> None:
        await super().aclose()
        await asyncio.to_thread(shutil.rmtree, self._etc.parent, True)


class _Status:
    """What bwrap reports on its status descriptor: the namespace's first process, and the command's exit code."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._text = ""

    def _fields(self) -> dict[str, int]:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._fd, 65536):
                self._text += chunk.decode()
        fields: dict[str, int] = {}
        for line in self._text.splitlines():
            fields.update(json.loads(line))
        return fields

    async def end_namespace(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the namespace's first process, with which the kernel ends all others, and wait until that is done."""
        await end_namespace(process, self._fields().get("child-pid"))

    def exit_code(self, finished: Finished) -> int:
        """The command's exit code; SandboxError when bwrap failed before the command ran."""
        code = self._fields().get("exit-code")
        if code is None:
            raise SandboxError(f"bubblewrap failed: {finished.output.text().strip()[-300:] or finished.returncode}")
        return code
