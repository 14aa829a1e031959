"""Fixtures: a shared exec server for harmless tests, one of its own for those that kill it, and containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from swe_rl.sandbox.container.limits import SUPERVISOR_PROGRAM
from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.server import ExecServer


@pytest.fixture(scope="module")
def supervisor() -> str:
    """Which supervisor serves: "compiled" or "script". Modules that test both override this with parameters."""
    return "compiled"


@pytest.fixture(scope="module")
def server(engine: Engine, supervisor: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecServer]:
    """A running exec server for a whole module. At the end no container that it made is left."""
    flags = ["--script-supervisor"] if supervisor == "script" else []
    running = ExecServer(engine, tmp_path_factory.mktemp("exec"), *flags)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def own_server(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., ExecServer]]:
    """`own_server(*flags, token=...)`: a server for one test, which may kill it."""
    made: list[ExecServer] = []

    def make(*flags: str, token: str = "", started: bool = True) -> ExecServer:
        folder = tmp_path / f"server{len(made)}"
        folder.mkdir()
        made.append(ExecServer(engine, folder, *flags, token=token))
        return made[-1].start() if started else made[-1]

    yield make
    for running in made:
        running.stop()


class Box:
    """One container of a server, with the calls that tests make most."""

    def __init__(self, server: ExecServer, container_id: str) -> None:
        self.server, self.id = server, container_id

    async def run(self, command: str, timeout: float = 30.0, **fields: Any) -> dict[str, Any]:
        body = {"container_id": self.id, "command": command, "timeout": timeout, **fields}
        return await self.server.ok("/container/exec", **body)

    async def processes(self) -> list[str]:
        """Command lines in the container, without the supervisor and the reader that it keeps ready."""
        text = await asyncio.to_thread(self.server.engine.docker, "top", self.id, "-eo", "pid,args")
        lines = [line.split(None, 1)[-1].strip() for line in text.splitlines()[1:]]
        own = ("# The supervisor", SUPERVISOR_PROGRAM)
        return [line for line in lines if not any(word in line for word in own) and line != "cat"]

    async def ended(self, word: str = "") -> None:
        """Wait until no process with `word` in its command line is left: one that was killed takes a moment to go."""
        for _ in range(300):
            left = [line for line in await self.processes() if word in line]
            if not left:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"still there: {left}")


async def new_box(server: ExecServer, **fields: Any) -> Box:
    """A fresh container of the test image."""
    answer = await server.ok("/container/create", **{"image": TEST_IMAGE, "cwd": "/testbed", **fields})
    return Box(server, answer["container_id"])


@pytest_asyncio.fixture
async def box(server: ExecServer) -> AsyncIterator[Box]:
    made = await new_box(server)
    yield made
    assert await server.ok("/container/destroy", container_id=made.id) == {"ok": True, "destroyed": True}
