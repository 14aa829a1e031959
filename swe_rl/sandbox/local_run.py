"""Run one host process for a local sandbox: bounded output, a deadline, nothing left behind.

It does not wait for end-of-file on the output pipe, because a background child that inherited it would hold the answer;
the end of the process itself (a pidfd) is what counts. All waits live in the caller's event loop: no threads per command.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from swe_rl.sandbox.local_output import BoundedOutput

READ_SIZE = 1 << 18
PIPE_SIZE = 1 << 20  # Linux' default bound for unprivileged users
FLOOD_BYTES = 32 << 20  # past this much output the reader slows down, so that `yes` cannot occupy the event loop
FLOOD_PAUSE = 0.02
END_BOUND = 10.0  # seconds a killed process may take to disappear


@dataclass(frozen=True)
class Finished:
    """How a host process ended. `returncode` is negative for a signal, as in `subprocess`."""

    returncode: int
    output: BoundedOutput
    timed_out: bool
    seconds: float


class _Reader:
    """Reads a pipe from the event loop into a `BoundedOutput`."""

    def __init__(self, fd: int, output: BoundedOutput) -> None:
        self.fd, self.output = fd, output
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # a smaller pipe only means more wake-ups
            fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_SIZE)
        self._loop.add_reader(fd, self._readable)

    def _read(self) -> bytes | None:
        try:
            data = os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return None
        self.output.feed(data)
        return data

    def _readable(self) -> None:
        if self._read() == b"":
            self._loop.remove_reader(self.fd)
        elif self.output.total > FLOOD_BYTES:
            self._loop.remove_reader(self.fd)
            self._resume = self._loop.call_later(FLOOD_PAUSE, self._loop.add_reader, self.fd, self._readable)

    def close(self) -> None:
        """Take what the pipe still holds (at most its own size: a living writer cannot keep us here), then close it."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self.fd)
        for _ in range(PIPE_SIZE // READ_SIZE + 1):
            if not self._read():
                break
        os.close(self.fd)


async def wait_exit(process: subprocess.Popen[bytes]) -> int:
    """The process's return code; the wait can be cancelled without reaping anything twice."""
    if process.poll() is not None:
        return process.returncode
    await wait_pidfd(os.pidfd_open(process.pid))
    return process.wait()


async def wait_pidfd(pidfd: int) -> None:
    """Wait until the process behind `pidfd` has ended; closes the descriptor."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(pidfd, end)
    try:
        await ended
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def run_process(
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str],
    timeout: float,
    output_limit: int,
    kill: Callable[[subprocess.Popen[bytes]], Awaitable[None]],
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    cwd: str | None = None,
) -> Finished:
    """Run `argv` in a session of its own with stdout and stderr in one pipe.

    After `timeout` seconds, or when the caller is cancelled, `kill(process)` must end it and all that it started.
    Raises OSError when it cannot be started (no such program, no process slots).
    """
    output = BoundedOutput(output_limit)
    read_end, write_end = os.pipe()
    started = time.monotonic()
    try:
        process = subprocess.Popen(  # noqa: ASYNC220 (vfork: a millisecond; nothing later blocks)
            argv,
            stdin=stdin,
            stdout=write_end,
            stderr=write_end,
            env=dict(env),
            cwd=cwd,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    reader = _Reader(read_end, output)
    timed_out = False
    try:
        try:
            await asyncio.wait_for(wait_exit(process), max(0.0, timeout))
        except (asyncio.TimeoutError, TimeoutError):
            timed_out = True
        finally:
            # Also after a normal end: background children that the process left are part of the command.
            await asyncio.shield(kill(process))
            await asyncio.wait_for(wait_exit(process), END_BOUND)
    finally:
        reader.close()
    return Finished(process.returncode, output, timed_out, time.monotonic() - started)
