"""A pool server on a free port with fake nodes, restartable on the same book."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from swe_rl.sandbox.pool_server.app import make_app
from swe_rl.sandbox.pool_server.pool import Pool
from swe_rl.sandbox.pool_server.settings import PoolSettings
from tests.pool.fake_node import FakeNode

FAST = {"probe_interval": 0.05, "tick_interval": 0.05, "settle": 0.3, "abandon_grace": 0.2, "max_backoff": 0.3}


class RunningPool:
    """A pool server in this process. `restart()` is what a crash and a new start look like to everybody else."""

    def __init__(self, database: Path, **settings: Any) -> None:
        self.settings = PoolSettings(database=str(database), **{**FAST, **settings})
        self.port = 0

    async def start(self, *nodes: str) -> RunningPool:
        self.pool = Pool(self.settings)
        await self.pool.start(list(nodes))
        self.runner = web.AppRunner(
            make_app(self.pool), access_log=None, handler_cancellation=True, shutdown_timeout=0.2
        )
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = self.runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self.settings.token}"})
        return self

    async def stop(self) -> None:
        await self.session.close()
        await self.runner.cleanup()
        await self.pool.stop()

    async def restart(self, *nodes: str, **settings: Any) -> None:
        await self.stop()
        self.settings = replace(self.settings, **settings)
        await self.start(*nodes)

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        async with self.session.post(self.url + path, json=body) as response:
            return response.status, await response.json()

    async def allocate(self, key: str, **body: Any) -> tuple[int, dict[str, Any]]:
        return await self.post(
            "/allocate", **{"image": "img", "idempotency_key": f"key-{key}-00", "deadline_s": 20, **body}
        )


@pytest.fixture
async def nodes() -> AsyncIterator[Callable[..., Any]]:
    """`await nodes(...)`: a running fake node."""
    started: list[FakeNode] = []

    async def make(**kwargs: Any) -> FakeNode:
        node = await FakeNode(**kwargs).start()
        started.append(node)
        return node

    yield make
    for node in started:
        node.create_gate.set()
        node.exec_gate.set()
        await node.stop()


@pytest.fixture
async def pools(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`await pools(node_url, ..., capacity=...)`: a running pool server."""
    started: list[RunningPool] = []

    async def make(*urls: str, **settings: Any) -> RunningPool:
        pool = await RunningPool(tmp_path / f"pool{len(started)}.sqlite3", **settings).start(*urls)
        started.append(pool)
        return pool

    yield make
    for pool in started:
        await pool.stop()


async def until(condition: Callable[[], Any], within: float = 60.0) -> None:
    """Wait for a condition; the bound only ends a broken test."""
    ends = time.monotonic() + within
    while not condition():
        assert time.monotonic() < ends, "the condition did not come true"
        await asyncio.sleep(0.02)
