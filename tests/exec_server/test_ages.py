"""Old containers go; those of a lease are the pool's to end, and go only when no pool can still own them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_rl.sandbox.exec_server.answers import open_database
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.exec_server.requests import CreateBody
from swe_rl.sandbox.exec_server.settings import ExecSettings
from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.conftest import new_box
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker
LEASED = {"swe-rl.lease": "7"}


async def gone(engine: Engine, container_id: str, within: float = 30.0) -> None:
    ends = time.monotonic() + within
    while container_id[:12] in await asyncio.to_thread(engine.docker, "ps", "-aq"):
        assert time.monotonic() < ends, "it is still there"
        await asyncio.sleep(0.1)


async def test_age_ends_what_nobody_leases(own_server: Callable[..., ExecServer]) -> None:
    # The age counts from where the server first sees it, which is before it runs: a loaded machine needs its time.
    server = own_server("--max-age", "10", "--watch-interval", "0.2")
    leased, other = await new_box(server, labels=LEASED), await new_box(server)
    await gone(server.engine, other.id, within=60.0)
    assert (await leased.run("echo lives"))["output"] == "lives\n"


async def test_what_no_pool_can_own_any_more_goes_too(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The book of a pool may be lost with its machine. The clock of a machine may be set: only time that passed counts."""
    settings = ExecSettings(str(tmp_path / "db"), engine.host, max_age=1.0, watch_interval=3600.0, compiled=False)
    node = Node(settings, open_database(settings.database))
    await node.start()
    try:
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 40 * 86400.0)
        made = await node.create(CreateBody(image=TEST_IMAGE, labels=LEASED), "")
        for days, stays in ((0, True), (7, True), (9, False)):
            node._first_seen[made.id] = time.monotonic() - days * 86400.0
            await node._ages()
            assert (made.id[:12] in await asyncio.to_thread(engine.docker, "ps", "-aq")) is stays
        assert node.removed_for_age == 1
    finally:
        await node.stop()
