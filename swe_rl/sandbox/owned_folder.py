"""Private folders that name their owner: a killed process cannot remove its own, so the next one removes them.

Pids are used again, so a process is known by pid and start time.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import psutil

RECORDS = ("owner.json", "child.json")  # processes that may still need the folder


def process_record(pid: int | None = None) -> dict[str, float]:
    """What tells a process (default: this one) from a later one with its pid."""
    process = psutil.Process(pid)
    return {"pid": process.pid, "started": process.create_time()}


def process_lives(pid: int, started: float) -> bool:
    """Whether the process that had `pid` since `started` is alive. One that was killed and not yet waited for is not."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def recorded_lives(record: Path) -> bool:
    """Whether the process that a record file names is alive."""
    try:
        owner = json.loads(record.read_text())
        return process_lives(int(owner["pid"]), float(owner["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def private_folder(kind: str) -> Path:
    """A new folder of this process in the temporary folder, after those of the same kind that killed processes left are gone."""
    root = Path(tempfile.gettempdir())
    prefix = f"swerl-{kind}-{os.getuid()}-"
    for left in root.glob(f"{prefix}*"):
        if not any(recorded_lives(left / name) for name in RECORDS):
            shutil.rmtree(left, ignore_errors=True)
    # Complete before it has its final name: nobody sees it without an owner.
    new = Path(tempfile.mkdtemp(prefix=f".new-{prefix}"))
    (new / "owner.json").write_text(json.dumps(process_record()))
    return new.rename(root / f"{prefix}{uuid.uuid4().hex[:8]}")
