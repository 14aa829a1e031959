"""scripts/dev/docker_engine.sh ends what it started, also where the engine was killed and can no longer help."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from swe_rl.sandbox.owned_folder import process_lives, process_record
from tests.docker_engine import SCRIPT, TEST_IMAGE, running_engine

pytestmark = pytest.mark.docker


def users_of(root: Path) -> list[str]:
    """Mounts and processes that still have to do with `root`."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if f" {root}/" in line]
    processes = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if str(root) in str(p.info["cmdline"])]
    return [*mounts, *(" ".join(words) for words in processes if SCRIPT.name not in str(words))]


def test_down_after_a_killed_engine_leaves_nothing() -> None:
    with running_engine("killed") as engine:
        box = engine.docker("run", "-d", "--network", "none", TEST_IMAGE, "sleep", "1234").strip()
        pid = int(engine.docker("inspect", "--format", "{{.State.Pid}}", box))
        started = process_record(pid)["started"]
        os.kill(int((engine.root / "engine.pid").read_text()), signal.SIGKILL)
        down = subprocess.run(
            [SCRIPT, "down", engine.name, "--root", str(engine.root)], capture_output=True, text=True, timeout=120
        )
        assert (down.returncode, engine.root.exists()) == (0, False), down.stderr
        ends = time.monotonic() + 30
        while process_lives(pid, started) or users_of(engine.root):
            assert time.monotonic() < ends, users_of(engine.root)
            time.sleep(0.1)


def test_a_busy_root_is_said_and_kept(tmp_path: Path) -> None:
    """Files below a mount that will not go are never deleted through it."""
    root = tmp_path / "root"
    (root / "mounted").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("data")
    (tmp_path / "umount").write_text("#!/bin/sh\nexit 32\n")
    (tmp_path / "umount").chmod(0o755)
    subprocess.run(["mount", "--bind", str(tmp_path / "kept"), str(root / "mounted")], check=True, timeout=30)
    try:
        down = subprocess.run(
            [SCRIPT, "down", "busy", "--root", str(root)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )
        assert down.returncode == 1 and f"cannot unmount {root}/mounted" in down.stderr
    finally:
        subprocess.run(["umount", str(root / "mounted")], check=True, timeout=30)
    assert (tmp_path / "kept" / "file").read_text() == "data"
