"""What tests ask about processes that may end while they are asked."""

from __future__ import annotations

import time

import psutil


def cmdline(process: psutil.Process) -> list[str]:
    """Its command line; empty for one that has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid: int, within: float = 30.0) -> bool:
    """Whether it has ended `within` seconds from now."""
    end = time.monotonic() + within
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
