"""Pulls against a registry on loopback and a real engine: joined, credentials, mirrors, limits, missing; eviction."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from swe_rl.sandbox.container import images as images_module
from swe_rl.sandbox.container import pull as pull_module
from swe_rl.sandbox.container.engine import Engine as EngineApi
from swe_rl.sandbox.container.errors import ImageMissing, ImagePulling
from swe_rl.sandbox.container.image_names import load_credentials
from swe_rl.sandbox.container.images import Images
from swe_rl.sandbox.container.pull import Puller
from swe_rl.sandbox.exec_server.answers import open_database
from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.registry import Registry, digest
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker


@pytest_asyncio.fixture
async def api(engine: Engine) -> AsyncIterator[EngineApi]:
    api = EngineApi(engine.host)
    yield api
    await api.aclose()


def images_of(api: EngineApi, folder: Path, mirrors: list[str] | None = None, config: str = "") -> Images:
    puller = Puller(api, timeout=60, mirrors=mirrors or [], credentials=load_credentials(config))
    return Images(api, puller, open_database(str(folder / "db")), [], pull=True)


async def test_all_who_want_an_image_share_one_pull(api: EngineApi, tmp_path: Path) -> None:
    name = f"{uuid.uuid4().hex}/a:1"
    async with Registry(name) as registry:
        images, image = images_of(api, tmp_path), f"{registry.host}/{name}"
        registry.gate.clear()
        with pytest.raises(ImagePulling, match="still being pulled"):
            await images.fetch(image, 0.2)
        waiting = [asyncio.create_task(images.fetch(image, 30)) for _ in range(5)]
        await asyncio.sleep(0.1)
        assert len(images.puller.jobs) == 1
        registry.gate.set()
        await asyncio.gather(*waiting)
        assert await images.present(image) and registry.asked[name] == 1
        row = next(row for row in await images.listed() if image in row["tags"])
        assert row["digests"] and row["used_at"] and not row["pinned"]


async def test_missing_images_are_told_at_once(api: EngineApi, tmp_path: Path) -> None:
    async with Registry() as registry:
        with pytest.raises(ImageMissing, match="manifest"):
            await images_of(api, tmp_path).fetch(f"{registry.host}/no/such:1", 30)


async def test_rate_limits_are_waited_out(api: EngineApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "RATE_LIMIT_PAUSE", 0.2)
    monkeypatch.setattr(pull_module, "FIRST_PAUSE", 0.1)
    name = f"{uuid.uuid4().hex}/a:1"
    async with Registry(name) as registry:
        registry.rate_limited = 12  # the engine itself tries several times
        await images_of(api, tmp_path).fetch(f"{registry.host}/{name}", 50)


async def test_credentials(api: EngineApi, tmp_path: Path) -> None:
    name = f"{uuid.uuid4().hex}/a:1"
    async with Registry(name, password="pw") as registry:
        with pytest.raises(ImageMissing):
            await images_of(api, tmp_path).fetch(f"{registry.host}/{name}", 30)
        config = tmp_path / "config.json"
        auth = base64.b64encode(b"user:pw").decode()
        config.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        await images_of(api, tmp_path, config=str(config)).fetch(f"{registry.host}/{name}", 30)


async def test_mirror_of_the_hub(api: EngineApi, tmp_path: Path) -> None:
    name = f"u{uuid.uuid4().hex[:12]}/a:1"
    async with Registry(name) as registry:
        images = images_of(api, tmp_path, mirrors=["127.0.0.1:1/broken", registry.host])
        await images.fetch(name, 50)
        row = next(row for row in await images.listed() if name in row["tags"])
        assert row["tags"] == [name], "the mirror's name does not stay"


async def test_eviction(api: EngineApi, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{uuid.uuid4().hex}/a:1" for _ in range(3)]
    images = images_of(api, tmp_path)
    tags = []
    for name in names:
        async with Registry(name) as registry:
            tags.append(f"{registry.host}/{name}")
            await images.fetch(tags[-1], 30)
    images.used(tags[0])  # now the most recent one
    images.used(TEST_IMAGE)  # pinned by its label
    engine.docker("create", "--name", "user-of-1", tags[1], "x")
    monkeypatch.setattr(images_module, "disk_fraction", lambda root: 0.5)
    assert await images.evict("/", 0.8, 0.7) == []
    left = iter([0.9, 0.9, 0.1])
    monkeypatch.setattr(images_module, "disk_fraction", lambda root: next(left))
    assert await images.evict("/", 0.8, 0.7) == [tags[2]], "least recently used of those that no container uses"
    monkeypatch.setattr(images_module, "disk_fraction", lambda root: 0.9)
    assert await images.evict("/", 0.8, 0.7) == [tags[0]]
    assert await images.present(TEST_IMAGE) and await images.present(tags[1])
    engine.docker("rm", "user-of-1")


async def test_an_image_pulled_by_its_digest_can_be_used_and_evicted(
    api: EngineApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{uuid.uuid4().hex}/a"
    images = images_of(api, tmp_path)
    async with Registry(f"{name}:1") as registry:
        image = f"{registry.host}/{name}@{digest(registry.manifest)}"
        await images.fetch(image, 30)
    assert await images.present(image)
    row = next(row for row in await images.listed() if image in row["digests"])
    assert (row["name"], row["tags"], row["used_at"] is not None) == (image, [], True)
    monkeypatch.setattr(images_module, "disk_fraction", lambda root: 0.9)
    assert image in await images.evict("/", 0.8, 0.7)
    assert not await images.present(image)


async def test_create_pulls_what_is_missing_and_says_while_it_lasts(server: ExecServer) -> None:
    name = f"devcontainers/storage/{uuid.uuid4().hex}:1"  # words that the engine's other errors hold
    async with Registry(name) as registry:
        registry.gate.clear()
        image = f"{registry.host}/{name}"
        status, answer = await server.post("/container/create", image=image, timeout=1)
        assert (status, answer["error"]["kind"]) == (503, "image_pulling")
        registry.gate.set()
        for _ in range(100):
            state = await server.ok("/image/pull", image=image)
            if state["state"] == "done":
                break
            await asyncio.sleep(0.1)
        assert state["state"] == "done"
        status, answer = await server.post("/container/create", image=image, timeout=30)
        assert (status, answer["error"]["kind"]) == (422, "image_unusable"), "it is here, but holds no bash"


async def test_a_short_wait_ends_nobody_elses_pull(server: ExecServer) -> None:
    name = f"{uuid.uuid4().hex}/a:1"
    async with Registry(name) as registry, aiohttp.ClientSession() as session:
        registry.gate.clear()
        body = {"image": f"{registry.host}/{name}", "timeout": 1, "stream": True}
        assert (await server.ok("/image/pull", **{**body, "stream": False}))["state"] == "pulling"
        create = {"image": body["image"], "timeout": 60}
        creating = asyncio.create_task(server.post("/container/create", **create))
        async with session.post(f"{server.url}/image/pull", json=body) as stream:
            last = (await stream.text()).splitlines()[-1]
        assert json.loads(last)["state"] == "pulling", "the stream ended in its time, the pull goes on"
        registry.gate.set()
        status, answer = await creating
        assert (status, answer["error"]["kind"]) == (422, "image_unusable"), "it came, but holds no bash"


async def test_an_image_that_nobody_waited_for_can_be_evicted(
    api: EngineApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{uuid.uuid4().hex}/a:1"
    async with Registry(name) as registry:
        images, image = images_of(api, tmp_path), f"{registry.host}/{name}"
        assert await images.puller.wait(images.puller.join(image), 60)
    monkeypatch.setattr(images_module, "disk_fraction", lambda root: 0.9)
    assert image in await images.evict("/", 0.8, 0.7)
