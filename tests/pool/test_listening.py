"""The sockets of a server: a caller whose machine vanishes says no goodbye, and what it holds must not wait for hours."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from aiohttp import web

from swe_rl.errors import UsageError
from swe_rl.sandbox.server.process import listening

OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")


@pytest.mark.skipif(not all(hasattr(socket, name) for name in OPTIONS), reason="the platform has no such options")
async def test_a_caller_that_vanishes_is_noticed_within_a_minute() -> None:
    async def options(request: web.Request) -> web.Response:
        assert request.transport is not None
        accepted = request.transport.get_extra_info("socket")
        idle, interval, count = (accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OPTIONS)
        on = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return web.json_response([bool(on), idle + interval * count])

    app = web.Application()
    app.router.add_get("/", options)
    async with (
        listening(app, "127.0.0.1", 0) as server,
        aiohttp.request("GET", f"http://127.0.0.1:{server.port}/") as answer,
    ):
        on, seconds = await answer.json()
    assert on and seconds <= 60


async def test_a_server_that_lets_nobody_in_frees_its_address_at_once() -> None:
    async with listening(web.Application(), "127.0.0.1", 0) as first:
        with pytest.raises(UsageError, match=f"--port {first.port}"):
            async with listening(web.Application(), "127.0.0.1", first.port):
                pass
        first.refuse_new()
        async with listening(web.Application(), "127.0.0.1", first.port) as second:
            assert second.port == first.port
