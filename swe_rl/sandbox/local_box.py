"""The folder behind one local sandbox: a private copy of the task's repository, owned by a process that is on record.

A crashed run cannot remove its copies, so each folder names its owner (pid and start time) and the next start removes
the folders, and in process mode the processes, whose owner is dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

from swe_rl.errors import SandboxError, UsageError
from swe_rl.sandbox.owned_folder import process_record, recorded_lives

MARK = "SWE_RL_SANDBOX"  # variable of every command in process mode: finds what a crashed run left behind


@dataclass(frozen=True)
class Box:
    """Folders of one sandbox. `uid` owns them and runs the commands (the caller's own uid where it cannot be changed)."""

    path: Path
    uid: int

    @property
    def repo(self) -> Path:
        return self.path / "repo"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    @property
    def home(self) -> Path:
        return self.path / "home"


def boxes_root(configured: str) -> Path:
    """The folder of all boxes, made with mode 0700. Raises UsageError when it belongs to somebody else."""
    root = Path(configured) if configured else Path(tempfile.gettempdir()) / f"swe-rl-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise UsageError(f"sandbox_root {root} belongs to another user: set --sandbox-root to a folder of your own")
    root.chmod(0o700)
    boxes = root / "boxes"
    boxes.mkdir(mode=0o700, exist_ok=True)
    return boxes


def create_box(root: Path, archive: str, uid: int) -> Box:
    """A new box with the archive unpacked in `repo`; everything belongs to `uid`. Blocks for some milliseconds.

    Raises SandboxError when the archive is missing, broken or holds no git repository.
    """
    # The record is complete before the folder has its final name: a sweep never sees a box without an owner.
    name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    path = root / f".new-{name}"
    path.mkdir(mode=0o700)
    (path / "owner.json").write_text(json.dumps(process_record()))
    path = path.rename(root / name)
    box = Box(path, uid)
    try:
        for folder in (box.repo, box.tmp, box.home):
            folder.mkdir(mode=0o700)
        _unpack(archive, box.repo)
        _give(box, uid)
    except BaseException:
        remove_tree(path)
        raise
    return box


def _unpack(archive: str, repo: Path) -> None:
    if not Path(archive).is_file():
        raise SandboxError(f"archive {archive!r} is not a file: build the tasks' archives first")
    # GNU tar drops leading '/', refuses '..' and does not write through links that the archive itself makes.
    command = ["tar", "-x", "-f", archive, "-C", str(repo), "--no-same-owner"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip()[-300:]
        raise SandboxError(f"archive {archive} cannot be unpacked: {reason}")
    entries = list(repo.iterdir())
    if len(entries) == 1 and (entries[0] / ".git").is_dir() and not entries[0].is_symlink():
        inner = entries[0].rename(repo.parent / "inner")
        repo.rmdir()
        inner.rename(repo)
    if not (repo / ".git").is_dir() or (repo / ".git").is_symlink():
        raise SandboxError(f"archive {archive} holds no git repository (.git)")


def _give(box: Box, uid: int) -> None:
    if uid == os.getuid():
        return
    for folder in (box.repo, box.tmp, box.home):
        os.chown(folder, uid, uid)
        for where, folders, files in os.walk(folder):
            for name in folders + files:
                os.lchown(os.path.join(where, name), uid, uid)  # noqa: PTH118 (hot loop)


def remove_tree(path: Path) -> None:
    """Remove a folder whatever a command made of it (modes 000, very deep trees). Raises SandboxError if it stays."""

    def open_up(function: object, name: str, error: object) -> None:
        with contextlib.suppress(OSError):
            Path(name).parent.chmod(0o700)
            Path(name).chmod(0o700)

    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path, onerror=open_up)
    if path.exists():
        subprocess.run(["rm", "-rf", "--", str(path)], stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
    if path.exists():
        raise SandboxError(f"the sandbox folder {path} cannot be removed")


def sweep(root: Path) -> int:
    """Remove the boxes of dead owners and end what still runs in them; returns how many there were."""
    dead = [
        box for box in root.iterdir() if box.is_dir() and not recorded_lives(box / "owner.json") and not _is_new(box)
    ]
    if dead:
        names = {box.name for box in dead}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) in names:
                    process.kill()
    for box in dead:
        with contextlib.suppress(SandboxError):  # another run may be sweeping the same box
            remove_tree(box)
    return len(dead)


def _is_new(box: Path) -> bool:
    """A folder that its owner is still preparing (its name begins with the pid)."""
    if not box.name.startswith(".new-"):
        return False
    pid = box.name.removeprefix(".new-").split("-")[0]
    return pid.isdigit() and psutil.pid_exists(int(pid))
