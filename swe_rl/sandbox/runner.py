"""Supervises one command of a process sandbox; run as a script with the bare interpreter, so it imports nothing of ours.

A process group alone cannot end a command: what called `setsid` has left it. This process is the reaper of its descendants
(PR_SET_CHILD_SUBREAPER), so every orphan comes back to it and is killed before it exits. It ends when its parent does.

usage: runner.py COMMAND [ARG...]
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ROUNDS = 200  # of killing descendants; each round ends every process that the one before could still have started


def main() -> int:
    parent = os.getppid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return 125
    signal.signal(signal.SIGTERM, stop)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        try:
            os.execvp(sys.argv[1], sys.argv[1:])
        except OSError as error:
            os.write(2, f"{sys.argv[1]}: {error.strerror}\n".encode())
            os._exit(127)
    status = 0
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            break
    kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def stop(number: int, frame: object) -> None:
    kill_descendants()
    os._exit(124)


def kill_descendants() -> None:
    """Kill and reap until no child is left; killed parents hand their children to us, so a few rounds reach everything."""
    for _ in range(ROUNDS):
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        signal.sigtimedwait([signal.SIGCHLD], 0.01)


def descendants() -> list[int]:
    """All processes below this one, by the parent links in /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (pathlib would double this script's start)
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                    after_name = stat.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(after_name[1]), []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


if __name__ == "__main__":
    sys.exit(main())
