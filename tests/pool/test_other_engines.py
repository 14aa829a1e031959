"""Engines behind tcp:// and engines that are of no use: the local image gets there, and `auto` passes on to the next sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.sandbox import provider
from swe_rl.sandbox.container.local_image import build_local_image
from tests.docker_engine import Engine

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def copied(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        to.write(data)
        await to.drain()
    to.close()


@contextlib.asynccontextmanager
async def tcp_door(engine: Engine) -> AsyncIterator[str]:
    """tcp:// address of an engine that has only a socket file."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside, outside = await asyncio.open_unix_connection(engine.host.removeprefix("unix://"))
        await asyncio.gather(copied(reader, outside), copied(inside, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.docker
async def test_the_local_image_gets_to_an_engine_behind_tcp(engine: Engine) -> None:
    async with tcp_door(engine) as address:
        assert await build_local_image(address, "swe-rl/over-tcp:1") == "swe-rl/over-tcp:1"
    assert await asyncio.to_thread(engine.docker, "images", "-q", "swe-rl/over-tcp:1")
    await asyncio.to_thread(engine.docker, "rmi", "swe-rl/over-tcp:1")


async def hangs_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def refuses(request: web.Request) -> web.Response:
    return web.json_response({"message": "no space left on device"}, status=500)


@pytest.mark.parametrize("answer", [hangs_up, refuses])
async def test_auto_passes_over_an_engine_that_takes_no_image(
    answer: Callable[[web.Request], Awaitable[web.Response]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def version(request: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.41"})

    async def missing(request: web.Request) -> web.Response:
        return web.json_response({"message": "No such image"}, status=404)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{version:v.*/|}info", version)
    app.router.add_route("*", "/{version:v.*/|}version", version)
    app.router.add_route("*", "/{version:v.*/|}images/create", answer)
    app.router.add_route("*", "/{version:v.*/|}images/{name:.*}/json", missing)
    async with TestServer(app) as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.port}")
        monkeypatch.setattr(provider, "CHOICES", ("docker", "process"))
        opened = await provider.open_provider(SandboxSettings(sandbox="auto", sandbox_root=str(tmp_path / "root")))
        await opened.aclose()
    assert opened.name == "process"
