"""Ending process trees by pid (design rule 8), and remembering what a run started so that its successor can clean up."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(sig: int = signal.SIGTERM, *, parent: int | None = None) -> None:
    """Ask Linux to send `sig` to this process when its parent dies (prctl(2), PR_SET_PDEATHSIG). No-op elsewhere.

    parent: the pid that started this process. Where it has died already, the signal comes at once: Linux would send none.
    """
    _prctl(PR_SET_PDEATHSIG, sig)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), sig)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER), so that none can escape cleanup."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def end_processes(processes: list[psutil.Process], *, grace: float = 5.0) -> list[int]:
    """SIGTERM, then SIGKILL after `grace` seconds. Returns the pids that had to be ended."""
    ended = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            ended.append(process.pid)
    _, alive = psutil.wait_procs(processes, timeout=grace)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=grace)
    return ended


def end_descendants(*, grace: float = 5.0) -> list[int]:
    """End every descendant of this process, those that appear meanwhile included (three rounds bound it)."""
    ended: list[int] = []
    for _ in range(3):
        children = psutil.Process().children(recursive=True)
        if not children:
            break
        ended += end_processes(children, grace=grace)
        reap_zombies()
    return ended


def reap_zombies(*, spare: int = 0) -> None:
    """Collect ended children that were adopted: nobody else waits for them. `spare`: a pid that somebody waits for."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid != spare and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def record_processes(path: Path) -> None:
    """Write (pid, start time) of this process's descendants, so that the next start can end what a SIGKILL left."""
    entries = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            entries.append({"pid": process.pid, "created": process.create_time()})
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(entries))
    temporary.replace(path)


def end_recorded_processes(path: Path) -> list[int]:
    """End processes that `record_processes` wrote and that still live; pids that were reused by others are spared."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return []
    alive = []
    for entry in entries:
        with contextlib.suppress(psutil.NoSuchProcess, KeyError, TypeError):
            process = psutil.Process(int(entry["pid"]))
            if abs(process.create_time() - float(entry["created"])) < 0.01:
                alive.append(process)
    ended = end_processes(alive)
    path.unlink(missing_ok=True)
    return ended
