"""Engines under test: the embedded one in this process (fast), and both kinds as real servers (conformance)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from aiohttp.test_utils import TestServer

from swe_rl.engine.client import EngineClient
from swe_rl.engine.embedded import server
from swe_rl.engine.embedded.app import make_app
from swe_rl.engine.embedded.service import EngineService
from tests.engine import models

torch.set_num_threads(1)  # OpenMP's threads spin at barriers: on shared cores two are slower than one


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(models.qwen3(), tmp_path_factory.mktemp("qwen3"))


def build(folder: Path, *flags: str) -> EngineService:
    """An engine in this process, its scheduler's thread not yet started."""
    arguments = ["--model-path", str(folder), "--context-length", "1024", "--max-total-tokens", "8192", *flags]
    return server.build(server.parser().parse_args(arguments))


async def until_running(service: EngineService) -> None:
    """Wait until the engine computes something. Requests must be long enough to be seen."""
    for _ in range(3000):  # the scheduler is a thread without an asyncio event
        if service.scheduler.batch.running:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no request was running within 30 s")


@pytest.fixture
def service(checkpoint: Path) -> Iterator[EngineService]:
    engine = build(checkpoint)
    engine.scheduler.start()
    yield engine
    engine.scheduler.stop()


@pytest.fixture
async def client(service: EngineService) -> AsyncIterator[EngineClient]:
    """A real client over real HTTP to the engine of this process."""
    http = TestServer(make_app(service, max_body_bytes=64 << 20), handler_cancellation=True)
    await http.start_server()
    one = EngineClient([str(http.make_url("/")).rstrip("/")], request_timeout=60)
    yield one
    await one.aclose()
    await http.close()
