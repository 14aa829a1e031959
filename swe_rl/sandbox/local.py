"""What the sandboxes without a container engine share: private copies, exec, files in and out, one owner that ends all.

`BubblewrapProvider` and `ProcessProvider` only say how a command line is wrapped and how it is ended.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError, SandboxUnavailable
from swe_rl.owned_tasks import cancel_all
from swe_rl.sandbox.local_box import Box, boxes_root, create_box, remove_tree, sweep
from swe_rl.sandbox.local_run import Finished, run_process
from swe_rl.sandbox.protocol import DEFAULT_OUTPUT_LIMIT
from swe_rl.types import ExecResult, Task

TRANSFER_TIMEOUT = 120.0  # seconds one file may take into or out of a sandbox
MAX_COMMAND_BYTES = 64 << 20

# The command arrives on a descriptor, never in argv (one string there is limited to 128 KiB). `eval` of a variable behaves
# and reports errors as `bash -c` does. The variable is not exported, so nothing that the command starts carries it.
_PRELUDE = (
    'IFS= read -r -d "" -u {fd} SWE_RL_COMMAND; exec {fd}<&-; cd -- "$1" || exit 1; shift; '
    "ulimit -c 0 -u {processes} -v {memory_kb} -f {file_kb} 2>/dev/null; "
    'eval "$SWE_RL_COMMAND"'
)
# Files are moved by `cat` inside the sandbox: a link that the agent planted leads nowhere it could not go itself.
_WRITE = (
    'umask 022; cd -- "$3" && d=$(dirname -- "$1") && { [ -d "$d" ] || mkdir -p -- "$d"; } && '
    'cat > "$1" && chmod -- "$2" "$1"'
)
_READ = 'cd -- "$3" && [ -f "$1" ] || exit 66; exec head -c "$2" -- "$1"'


@dataclass
class Launch:
    """One wrapped command line, how to end it, and what it needs while it runs."""

    argv: list[str | bytes]
    kill: Callable[[subprocess.Popen[bytes]], Awaitable[None]]
    pass_fds: list[int] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    check: Callable[[Finished], int] = lambda finished: finished.returncode  # the command's own code, or SandboxError
    close: Callable[[], None] = lambda: None


class LocalSandbox:
    """A sandbox on this machine. Commands are serial or concurrent; `close` ends them all and removes the copy."""

    def __init__(self, provider: LocalProvider, box: Box, task: Task) -> None:
        self.task = task
        self.box = box
        self.workdir = provider.workdir(box, task)
        self.base_commit = task.base_commit
        self._provider = provider
        self._running: set[asyncio.Task[tuple[int, Finished]]] = set()
        self._closing: asyncio.Future[None] | None = None

    async def exec(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:
        """See `Sandbox.exec`. A `timeout` that is not above 0 (a model may say -1) ends the command at once."""
        data = command.encode("utf-8", errors="surrogateescape").replace(b"\0", b"")
        if len(data) > MAX_COMMAND_BYTES:
            raise SandboxError(f"a command of {len(data)} bytes is too long (at most {MAX_COMMAND_BYTES})")
        settings = self._provider.settings
        with _memory_file(data) as fd:
            prelude = _PRELUDE.format(
                fd=fd,
                processes=settings.sandbox_max_processes,
                memory_kb=settings.sandbox_memory_mb * 1024,
                file_kb=settings.sandbox_file_mb * 1024,
            )
            code, finished = await self._run(
                ["bash", "-c", prelude, "bash", os.path.join(self.workdir, cwd or "")],  # noqa: PTH118 (may be "/")
                pass_fds=[fd],
                env={**self.task.env, **(env or {})},
                timeout=timeout,
                limit=output_limit,
            )
        return ExecResult(
            returncode=124 if finished.timed_out else code,
            output=finished.output.text(),
            timed_out=finished.timed_out,
            truncated=finished.output.truncated,
            seconds=finished.seconds,
            dropped_bytes=finished.output.dropped,
        )

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.upload`."""
        with _memory_file(data) as fd:
            code, finished = await self._run(
                ["sh", "-c", _WRITE, "sh", path, f"{mode:o}", self.workdir],
                stdin=fd,
                timeout=TRANSFER_TIMEOUT,
                limit=2000,
            )
        if code != 0 or finished.timed_out:
            raise SandboxError(f"upload of {path} failed: {finished.output.text().strip()[-300:] or code}")

    async def download(self, path: str, *, max_bytes: int) -> bytes:
        """See `Sandbox.download`."""
        argv = ["sh", "-c", _READ, "sh", path, str(max_bytes + 1), self.workdir]
        code, finished = await self._run(argv, timeout=TRANSFER_TIMEOUT, limit=2 * max_bytes + 4096)
        if code == 66:
            raise SandboxError(f"download of {path} failed: no such file")
        if code != 0 or finished.timed_out:
            raise SandboxError(f"download of {path} failed: {finished.output.text().strip()[-300:] or code}")
        data = finished.output.bytes()
        if len(data) > max_bytes:
            raise SandboxError(f"download of {path} failed: larger than {max_bytes} bytes")
        return data

    async def _run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        limit: int,
        env: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> tuple[int, Finished]:
        if self._closing:
            raise SandboxError("the sandbox is closed")
        job = asyncio.ensure_future(
            self._provider.run(self.box, self.task, argv, timeout, limit, env or {}, pass_fds, stdin)
        )
        self._running.add(job)
        try:
            return await job
        except asyncio.CancelledError:
            if self._closing and job.cancelled():
                raise SandboxError("the sandbox was closed while a command ran") from None
            raise
        finally:
            job.cancel()  # when our caller was cancelled, the command goes with it
            self._running.discard(job)

    async def close(self) -> None:
        """See `Sandbox.close`. It goes on where the caller is cancelled; a second call waits for the same end."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        await cancel_all(self._running)
        await asyncio.to_thread(remove_tree, self.box.path)
        self._provider.forget(self)


class LocalProvider(abc.ABC):
    """Opens local sandboxes below one root folder and closes those it still holds."""

    name: str

    def __init__(self, settings: SandboxSettings, tools_env: Path) -> None:
        self.settings = settings
        self.tools_env = tools_env
        self._root = boxes_root(settings.sandbox_root)
        self._open: set[LocalSandbox] = set()
        sweep(self._root)

    @abc.abstractmethod
    def workdir(self, box: Box, task: Task) -> str:
        """Where commands see the repository."""

    @abc.abstractmethod
    def base_env(self, box: Box) -> dict[str, str]:
        """The whole environment of a command: nothing of the host's own is inherited."""

    @abc.abstractmethod
    def launch(self, box: Box, task: Task, argv: Sequence[str]) -> Launch:
        """Wrap `argv` for this kind of sandbox."""

    def sandbox_uid(self) -> int:
        """The uid that commands run under."""
        return os.getuid()

    async def open(self, task: Task, *, deadline: Deadline, purpose: str) -> LocalSandbox:
        """See `SandboxProvider.open`. Only tasks that bring an archive can be opened without a container engine."""
        if not task.archive:
            raise SandboxUnavailable(
                f"task {task.instance_id} brings no archive: the {self.name} sandbox cannot hold it, "
                "use --sandbox docker, podman or pool"
            )
        deadline.check("allocate")
        creation = asyncio.ensure_future(asyncio.to_thread(create_box, self._root, task.archive, self.sandbox_uid()))
        try:
            await asyncio.wait({creation}, timeout=deadline.remaining())
        except BaseException:
            creation.add_done_callback(_remove_late_box)
            raise
        if not creation.done():
            creation.add_done_callback(_remove_late_box)
            raise SandboxUnavailable(f"no sandbox for {task.instance_id} before the deadline")
        sandbox = LocalSandbox(self, creation.result(), task)
        self._open.add(sandbox)
        return sandbox

    async def run(
        self,
        box: Box,
        task: Task,
        argv: Sequence[str],
        timeout: float,
        limit: int,
        env: dict[str, str],
        pass_fds: Sequence[int],
        stdin: int,
    ) -> tuple[int, Finished]:
        """Run one wrapped command; returns its own exit code (128 + signal) and how it ended."""
        launch = self.launch(box, task, argv)
        try:
            finished = await run_process(
                launch.argv,
                env={**self.base_env(box), **env, **launch.env},
                timeout=timeout,
                output_limit=limit,
                kill=launch.kill,
                stdin=stdin,
                pass_fds=[*pass_fds, *launch.pass_fds],
                cwd=launch.cwd,
            )
            code = 124 if finished.timed_out else launch.check(finished)
        except OSError as error:
            raise SandboxError(f"the {self.name} sandbox cannot start a command: {error}") from error
        except (asyncio.TimeoutError, TimeoutError):
            raise SandboxError(f"a command of the {self.name} sandbox could not be ended") from None
        finally:
            launch.close()
        return (code if code >= 0 else 128 - code), finished

    def forget(self, sandbox: LocalSandbox) -> None:
        self._open.discard(sandbox)

    async def aclose(self) -> None:
        """See `SandboxProvider.aclose`."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)))


def _remove_late_box(creation: asyncio.Future[Box]) -> None:
    if not creation.cancelled() and creation.exception() is None:
        remove_tree(creation.result().path)


@contextlib.contextmanager
def _memory_file(data: bytes):  # type: ignore[no-untyped-def]
    """A descriptor to read `data` from, without a name anywhere."""
    fd = os.memfd_create("swe-rl")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
