"""A small parent process that owns a run: whatever way the driver ends, nothing that it started lives on.

The driver (and Ray, engines, sandboxes below it) runs as a child. The parent adopts orphans, forwards signals, and when
the driver is gone it ends every descendant by pid. If the parent itself is killed, the driver gets SIGTERM and stops.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from swe_rl.cluster.processes import adopt_orphans, die_with_parent, end_descendants, reap_zombies

CHILD_MARK = "SWE_RL_SUPERVISED"
PARENT_MARK = "SWE_RL_SUPERVISOR"  # its pid
STOP_BOUND = 60.0  # seconds a signalled driver may take to stop by itself
# Seconds within which a terminal's SIGINT and the supervisor's are the same one: in a call of Ray a handler runs a second late.
ONE_CTRL_C = 5.0


def supervised() -> bool:
    """Whether this process is the driver below a supervisor."""
    return bool(os.environ.get(CHILD_MARK))


def stop_on_signals() -> None:
    """The driver's part: SIGINT, SIGTERM, SIGHUP and the supervisor's death become KeyboardInterrupt: everything gets closed.

    Set outright, because a shell starts background commands with SIGINT ignored and Python then leaves it so. But who has SIGHUP
    ignored (nohup) wants the run to outlive its terminal.
    """
    last = -ONE_CTRL_C

    def interrupt(*_: object) -> None:
        nonlocal last
        again, last = time.monotonic() - last < ONE_CTRL_C, time.monotonic()
        if not again:
            raise KeyboardInterrupt

    for signum in _stopping_signals():
        signal.signal(signum, interrupt)
    die_with_parent(signal.SIGTERM, parent=int(os.environ.pop(PARENT_MARK, 0)) or None)


def _stopping_signals() -> list[signal.Signals]:
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def private_folder() -> Path:
    """A short-named folder of this run for sockets and sandboxes; the supervisor removes it at the end.

    Short because AF_UNIX socket paths are limited to 107 bytes.
    """
    return Path(os.environ[CHILD_MARK])


def run_supervised(command: list[str]) -> int:
    """Run `command` as the supervised driver; returns its exit code (128 + signal number if a signal ended it)."""
    adopt_orphans()
    folder = tempfile.mkdtemp(prefix="swerl-")
    driver = subprocess.Popen(command, env={**os.environ, CHILD_MARK: folder, PARENT_MARK: str(os.getpid())})
    stop_at: float | None = None

    def forward(signum: int, _: object) -> None:
        nonlocal stop_at
        again = stop_at is not None
        stop_at = time.monotonic() + (0.0 if again else STOP_BOUND)  # a second signal means: now
        if driver.poll() is None:
            driver.send_signal(signum)  # a terminal's Ctrl-C has reached it already: it takes the two for one

    previous = {s: signal.signal(s, forward) for s in _stopping_signals()}
    try:
        while driver.poll() is None:
            if stop_at is not None and time.monotonic() > stop_at:
                driver.kill()
            try:
                driver.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                reap_zombies(spare=driver.pid)
    finally:
        end_descendants()
        shutil.rmtree(folder, ignore_errors=True)
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    return driver.returncode if driver.returncode >= 0 else 128 - driver.returncode
