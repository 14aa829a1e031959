"""The watch on a disk that really fills: an engine on a small file system of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.docker_engine import TEST_IMAGE, Engine, running_engine
from tests.exec_server.registry import Registry
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker
DISK_MB, IMAGE_MB = 800, 90  # the test image fills 8%, every pulled image 11% more, twice that while it is unpacked
HIGH, LOW = 0.9, 0.75
FLAGS = ("--watch-interval", "0.5", "--disk-high", str(HIGH), "--disk-low", str(LOW))


@pytest.fixture(scope="module")
def small_engine() -> Iterator[Engine]:
    """An engine whose files lie on a file system of DISK_MB."""
    folder = tempfile.mkdtemp(prefix="swe-rl-disk-", dir="/tmp")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", folder], check=True, timeout=30)
    try:
        with running_engine("small", folder=folder) as engine:
            yield engine
    finally:
        subprocess.run(["umount", folder], check=True, timeout=30)
        Path(folder).rmdir()


@pytest.fixture
def small_server(small_engine: Engine, tmp_path: Path) -> Iterator[ExecServer]:
    server = ExecServer(small_engine, tmp_path, *FLAGS, "--disk-mb", "50")
    try:
        yield server.start()
    finally:
        server.stop()


async def bring(server: ExecServer) -> str:
    """Pull an image of IMAGE_MB with content of its own; returns its name on the node."""
    name = f"{uuid.uuid4().hex}/a:1"
    async with Registry(name, megabytes=IMAGE_MB) as registry:
        image = f"{registry.host}/{name}"
        for _ in range(600):
            state = await server.ok("/image/pull", image=image)
            if state["state"] != "pulling":
                break
            await asyncio.sleep(0.1)
        assert state["state"] == "done", state
    return image


async def fullness(server: ExecServer) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/status") as answer:
        return float((await answer.json())["disk_fraction"])


def fill(engine: Engine, fraction: float) -> None:
    """Fill the engine's disk up to `fraction` at one stroke, with a file `filler` that is no image's."""
    disk = os.statvfs(engine.root)
    with (engine.root / "filler").open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, int(disk.f_frsize * (disk.f_bavail - (1 - fraction) * disk.f_blocks)))


def held(engine: Engine) -> set[str]:
    return set(engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}").split())


async def test_a_full_disk_evicts_the_least_recently_used(small_server: ExecServer, small_engine: Engine) -> None:
    pulled = [await bring(small_server) for _ in range(5)]
    small_engine.docker("create", "--name", "user", pulled[0], "x")  # the oldest is in use
    try:
        small_engine.docker("tag", pulled[1], "somebody/else:1")  # has a name that is not this server's to take away
        assert {*pulled, TEST_IMAGE} <= held(small_engine)
        fill(small_engine, 0.92)  # without two of the images it is 70% full
        for _ in range(600):
            if await fullness(small_server) < LOW:
                break
            await asyncio.sleep(0.1)
        left = held(small_engine)
        assert {pulled[0], pulled[1], "somebody/else:1", pulled[4], TEST_IMAGE} <= left
        assert not {pulled[2], pulled[3]} & left
    finally:  # the next tests need the room
        (small_engine.root / "filler").unlink(missing_ok=True)
        small_engine.docker("rm", "user")


async def test_a_lower_bound_holds_and_a_restart_forgets_none(small_server: ExecServer) -> None:
    made = await small_server.ok("/container/create", image=TEST_IMAGE, cwd="/testbed", limits={"disk_mb": 20})
    name = {"container_id": made["container_id"]}
    small_server.kill()
    small_server.start()  # it has created nothing yet, so it has not heard what the storage driver can
    code, answer = await small_server.post(
        "/container/exec", **name, command="head -c 30M /dev/urandom > file && sleep 30", timeout=20
    )
    assert code in (404, 500), answer
    code, answer = await small_server.post("/container/exec", **name, command="true")
    assert code == 404 and "20 MiB" in answer["error"]["message"]
    small_server.kill()
    small_server.flags += ("--watch-interval", "600")  # the watch does not look before the next command
    small_server.start()
    code, answer = await small_server.post("/container/exec", **name, command="true")
    assert code == 404 and "20 MiB" in answer["error"]["message"], "it is not started again"


async def test_a_container_that_fills_the_disk_is_ended(small_server: ExecServer) -> None:
    made = await small_server.ok("/container/create", image=TEST_IMAGE, cwd="/testbed")
    fill = "head -c 80M /dev/urandom > file && sleep 60"
    code, answer = await small_server.post("/container/exec", container_id=made["container_id"], command=fill)
    assert code in (404, 500), answer
    code, answer = await small_server.post("/container/exec", container_id=made["container_id"], command="true")
    assert code == 404 and "50 MiB" in answer["error"]["message"]
