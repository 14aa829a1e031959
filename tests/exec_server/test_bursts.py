"""A burst of requests reaches the engine a few at a time; who waits for a turn waits within its own deadline."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from swe_rl.errors import InfraError, UsageError
from swe_rl.owned_tasks import cancel_all
from swe_rl.sandbox.container.limits import Limits
from swe_rl.sandbox.exec_server import main
from swe_rl.sandbox.exec_server.answers import open_database
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.exec_server.requests import CreateBody
from swe_rl.sandbox.exec_server.settings import ExecSettings
from tests.docker_engine import TEST_IMAGE, Engine

HEAVY = re.compile(r"POST .*/containers/(create|\w+/start)$|DELETE .*/containers/\w+$")
BURST = 64


@pytest_asyncio.fixture
async def node(engine: Engine, tmp_path: Path) -> AsyncIterator[Node]:
    settings = ExecSettings(str(tmp_path / "db"), engine.host, limits=Limits(memory_mb=64, pids=64))
    made = Node(settings, open_database(settings.database))
    await made.start()
    yield made
    await made.stop()


@pytest.mark.docker
async def test_a_burst_reaches_the_engine_a_few_at_a_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    session = node.engine.docker.session
    ask, running, most, calls = session._request, Counter[str](), Counter[str](), 0

    async def counted(method: str, url: Any, **options: Any) -> Any:
        nonlocal calls
        heavy = bool(HEAVY.match(f"{method} {str(url).split('?')[0]}"))
        running[method], calls = running[method] + heavy, calls + heavy
        most[method] = max(most[method], running[method])
        try:
            return await ask(method, url, **options)
        finally:
            running[method] -= heavy

    monkeypatch.setattr(session, "_request", counted)
    boxes = await asyncio.gather(*(node.create(CreateBody(image=TEST_IMAGE), "") for _ in range(BURST)))
    try:
        assert (await boxes[-1].exec("echo lives", timeout=30)).output == "lives\n"
    finally:
        removed = await asyncio.gather(*(node.destroy(box.id) for box in boxes))
    assert all(removed) and calls >= 3 * BURST
    assert 1 < most["POST"] <= node.settings.parallel == 8 and 1 < most["DELETE"] <= 8


@pytest.mark.docker
async def test_removals_that_hang_do_not_keep_containers_from_being_made(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for a removal gives up and asks again; the engine is asked once."""
    session, hanging, asked = node.engine.docker.session, True, 0
    ask = session._request

    async def hangs(method: str, url: Any, **options: Any) -> Any:
        nonlocal asked
        if method == "DELETE" and hanging:
            asked += 1
            await asyncio.Event().wait()
        return await ask(method, url, **options)

    monkeypatch.setattr(session, "_request", hangs)
    boxes = [await node.create(CreateBody(image=TEST_IMAGE), "") for _ in range(node.settings.parallel)]
    for _ in range(2):
        for box in boxes:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(node.engine.remove(box.id), 0.2)
    assert asked == len(boxes)
    made = await node.create(CreateBody(image=TEST_IMAGE, timeout=60.0), "")
    hanging = False
    await cancel_all(node.engine._removals.values())
    assert all(await asyncio.gather(*(node.destroy(box.id) for box in [*boxes, made])))


@pytest.mark.docker
async def test_a_turn_is_waited_for_within_the_requests_deadline(node: Node) -> None:
    for _ in range(node.settings.parallel):
        await node.engine.turns.acquire()
    began = time.monotonic()
    with pytest.raises(InfraError, match="within 1 s"):
        await node.create(CreateBody(image=TEST_IMAGE, timeout=1.0), "")
    assert time.monotonic() - began < 10 and await node.listed() == []
    for _ in range(node.settings.parallel):
        node.engine.turns.release()
    assert await node.destroy((await node.create(CreateBody(image=TEST_IMAGE), "")).id)


def test_none_at_a_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--parallel"):
        main(["--database", str(tmp_path / "db"), "--parallel", "0"])
