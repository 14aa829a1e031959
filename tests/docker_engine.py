"""Real Docker Engines for tests: each fixture's daemons have roots and sockets of their own and end with the session.

Several daemons act as several exec nodes. Tests that use these fixtures carry the marker `docker`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "dev" / "docker_engine.sh"
TEST_IMAGE = "swe-rl/test:local"


@dataclass(frozen=True)
class Engine:
    """One running private daemon, holding TEST_IMAGE."""

    name: str
    root: Path
    host: str  # DOCKER_HOST: unix:///...

    def docker(self, *args: str, timeout: float = 120.0) -> str:
        """Run the docker CLI against this engine and return its stdout; raises CalledProcessError."""
        command = ["docker", "-H", self.host, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout).stdout


@contextlib.contextmanager
def running_engine(name: str, *flags: str, folder: str = "/tmp") -> Iterator[Engine]:
    """Start one engine with the test image; it also goes down by itself if this process is killed.

    flags: --podman. folder: where its files go; a short path, for its sockets.
    """
    if os.geteuid() != 0:
        pytest.skip("starting a container engine of our own needs root")
    root = Path(tempfile.mkdtemp(prefix="swe-rl-engine-", dir=folder))
    where = [name, "--root", str(root)]
    try:
        started = subprocess.run(
            [SCRIPT, "up", *where, "--owner", str(os.getpid()), *flags], capture_output=True, text=True, timeout=300
        )
        if started.returncode != 0:
            pytest.fail(f"no container engine: {started.stderr.strip()}")
        host = started.stdout.strip().removeprefix("DOCKER_HOST=")
        build = [sys.executable, "-m", "swe_rl.sandbox.container.local_image", "--host", host, "--tag", TEST_IMAGE]
        subprocess.run(build, check=True, timeout=300, stdout=subprocess.DEVNULL)
        yield Engine(name, root, host)
    finally:
        subprocess.run([SCRIPT, "down", *where], timeout=120, check=False)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def engines() -> Iterator[Callable[[int], list[Engine]]]:
    """`engines(n)`: n running daemons, started when first asked for and shared by the session."""
    with contextlib.ExitStack() as stack:
        running: list[Engine] = []

        def get(count: int) -> list[Engine]:
            while len(running) < count:
                running.append(stack.enter_context(running_engine(f"test{len(running)}")))
            return running[:count]

        yield get


@pytest.fixture(scope="session")
def engine(engines: Callable[[int], list[Engine]]) -> Engine:
    """One running Docker Engine."""
    return engines(1)[0]
