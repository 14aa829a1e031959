"""Files of more than one piece: the user's own like small ones, in memory file systems too, whole or refused."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from swe_rl.sandbox.container.files import MIB, PIECE
from tests.docker_engine import TEST_IMAGE
from tests.exec_server.conftest import Box, new_box
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker
USER_IMAGE = "swe-rl/user:1"


@pytest_asyncio.fixture
async def user_box(server: ExecServer) -> AsyncIterator[Box]:
    """A container of an image whose user is not root."""
    docker = server.engine.docker
    made = (await asyncio.to_thread(docker, "create", TEST_IMAGE, "x")).strip()
    await asyncio.to_thread(docker, "commit", "-c", "USER 1000", made, USER_IMAGE)
    await asyncio.to_thread(docker, "rm", made)
    box = await new_box(server, image=USER_IMAGE, cwd="/tmp")
    yield box
    await server.ok("/container/destroy", container_id=box.id)


async def upload(box: Box, path: str, data: bytes, **query: str) -> int:
    params = {"container_id": box.id, "path": path, **query}
    headers = {"Content-Type": "application/x-tar"} if path.endswith("/") else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{box.server.url}/container/upload", params=params, data=data) as answer,
    ):
        return answer.status


async def upload_answer(box: Box, path: str, data: bytes) -> tuple[int, dict[str, Any]]:
    params = {"container_id": box.id, "path": path}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{box.server.url}/container/upload", params=params, data=data) as answer,
    ):
        return answer.status, await answer.json()


async def download(box: Box, path: str, **query: str) -> tuple[int, bytes]:
    params = {"container_id": box.id, "path": path, **query}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{box.server.url}/container/download", params=params) as answer,
    ):
        return answer.status, await answer.read()


async def test_a_large_file_is_the_users_own(user_box: Box) -> None:
    data = os.urandom(PIECE + 1)
    assert await upload(user_box, "/tmp/large", data, mode="440") == 200
    assert (await user_box.run("stat -c '%u %a %s' large"))["output"] == f"1000 440 {len(data)}\n"
    assert await download(user_box, "/tmp/large") == (200, data)
    assert (await user_box.run("rm -f large"))["returncode"] == 0
    assert await upload(user_box, "/root/large", data) == 404, "as with a small file"


@pytest.mark.parametrize("size", [PIECE, PIECE + 3 * MIB + 7])
async def test_memory_file_systems_take_and_give_large_files(box: Box, size: int) -> None:
    data = os.urandom(size)
    assert await upload(box, "/dev/shm/new folder/file", data) == 200
    assert (await box.run("stat -c %s /dev/shm/new*/file"))["output"] == f"{size}\n"
    assert await download(box, "/dev/shm/new folder/file") == (200, data)
    assert (await download(box, "/dev/shm/new folder/file", max_bytes=str(size - 1)))[0] == 413


async def test_no_command_runs_between_two_pieces(box: Box) -> None:
    data = os.urandom(PIECE + 1)
    uploads = [asyncio.create_task(upload(box, "/testbed/file", data)) for _ in range(3)]
    looks = [asyncio.create_task(box.run("test ! -e file || stat -c %s file")) for _ in range(10)]
    assert await asyncio.gather(*uploads) == [200, 200, 200]
    assert {look["output"] for look in await asyncio.gather(*looks)} <= {"", f"{len(data)}\n"}
    assert await download(box, "/testbed/file") == (200, data)


@pytest.mark.parametrize("size", [3 * MIB, PIECE + 3 * MIB])
async def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new_one(server: ExecServer, size: int) -> None:
    room = size // MIB - 1
    box = await new_box(server, limits={"shm_mb": room})
    for path, left in (("/dev/shm/new", ""), ("/dev/shm/old", "old\n")):
        await box.run(f"echo old > {path}" if left else "true")
        status, answer = await upload_answer(box, path, os.urandom(size))
        assert (status, answer["error"]["kind"]) == (507, "disk_full"), answer
        assert (await box.run(f"cat {path} 2> /dev/null; rm -f {path}; ls -A /dev/shm"))["output"] == left
    assert await upload(box, "/dev/shm/new", os.urandom((room - 1) * MIB)) == 200
    assert (await box.run("ls -A /dev/shm"))["output"] == "new\n"
    await server.ok("/container/destroy", container_id=box.id)


@pytest.mark.parametrize("size", [5, PIECE + 5])
async def test_what_is_no_file_of_ones_own_is_written_to_as_it_is(box: Box, size: int) -> None:
    await box.run("echo x > there; ln -s there link; mkdir folder")
    data = os.urandom(size)
    for path in ("/testbed/link", "/dev/null", "/etc/hosts"):  # what is mounted cannot be replaced
        assert await upload(box, path, data, mode="666") == 200, path
    assert await upload(box, "/testbed/folder", data) == 404
    looked = await box.run("stat -c %s there /etc/hosts; readlink link; test -c /dev/null && ls -A . /etc/.swe* folder")
    expected = [str(size), str(size), "there", ".:", "folder", "link", "there", "folder:"]
    assert [line for line in looked["output"].split("\n") if line and "cannot access" not in line] == expected


async def test_archives_are_refused_where_they_would_be_lost(box: Box) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    assert await upload(box, "/dev/shm/folder/", packed.getvalue()) == 400
    assert await upload(box, "/dev-not/shm/", packed.getvalue()) == 200
    status, answer = await download(box, "/dev/shm/nothing", format="tar")
    assert status == 404 and b"not_found" in answer, "the container is not gone"
