"""The pool over Podman nodes, and the plane that a run starts for itself with `--sandbox podman`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from swe_rl.config.grading import GradingSettings
from swe_rl.config.sandbox import SandboxSettings
from swe_rl.deadline import Deadline
from swe_rl.grading.grader import grade_patch
from swe_rl.sandbox.local_plane import open_local_plane
from swe_rl.types import Task, Verdict
from tests.docker_engine import Engine
from tests.pool.conftest import until
from tests.pool.test_docker import (
    FIX,
    test_a_whole_attempt,
    test_evaluation_on_the_node,
    test_killed_servers_and_containers,
    test_the_reaper_looks_in_both_directions,
)

__all__ = [
    "test_a_whole_attempt",
    "test_evaluation_on_the_node",
    "test_killed_servers_and_containers",
    "test_the_reaper_looks_in_both_directions",
]
pytestmark = pytest.mark.podman


async def grades_in_the_default_image(task: Task) -> None:
    """A local plane on Podman grades in a container of the image that it builds, and leaves nothing."""
    provider = await open_local_plane(SandboxSettings(), "podman")
    assert provider.name == "podman"
    task = Task(**{**vars(task), "image": ""})
    settings = GradingSettings(verdict_cache=False)
    verdicts = [(await grade_patch(task, patch, provider, settings, Deadline(120))).verdict for patch in (FIX, b"")]
    await provider.aclose()
    assert verdicts == [Verdict.RESOLVED, Verdict.NO_PATCH]


async def test_a_local_plane_on_a_socket_that_is_there(engine: Engine, task: Task, monkeypatch) -> None:
    monkeypatch.setenv("CONTAINER_HOST", engine.host)
    await grades_in_the_default_image(task)
    assert engine.docker("ps", "-aq", "--filter", "label=swe-rl.managed") == ""


@pytest.fixture
def private_storage(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Podman's own storage in a folder of this test; no socket of a running service is to be seen."""
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/root"\nrunroot = "{tmp_path}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    monkeypatch.delenv("CONTAINER_HOST", raising=False)
    yield tmp_path
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        if line.split()[1].startswith(f"{tmp_path}/"):
            # Podman's own clean-up may take it away first.
            subprocess.run(["umount", "-l", line.split()[1]], check=False, timeout=30)
    ends = time.monotonic() + 60
    while f" {tmp_path}/" in Path("/proc/mounts").read_text():
        assert time.monotonic() < ends, "mounts of the test are left"
        time.sleep(0.1)


@pytest.mark.skipif(Path("/run/podman/podman.sock").exists(), reason="a Podman service of this machine would be used")
async def test_a_local_plane_starts_a_service_of_its_own(private_storage: Path, task: Task) -> None:
    await grades_in_the_default_image(task)
    ours = str(private_storage)

    def users() -> list[list[str]]:
        return [
            p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if ours in " ".join(p.info["cmdline"] or [])
        ]

    await until(lambda: users() == [])  # what conmon starts to clean up ends after the container has gone
    assert list((private_storage / "root" / "overlay-containers").glob("?" * 64)) == []
