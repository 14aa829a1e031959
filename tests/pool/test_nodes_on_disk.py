"""Which nodes a restarted server has, with how many places, and what becomes of leases on a node that is taken out."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from swe_rl.sandbox.pool_server.store import Statement
from tests.pool.conftest import RunningPool, until

BOOK_OF_VERSION_1 = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE nodes (url TEXT PRIMARY KEY, capacity INTEGER NOT NULL, draining INTEGER NOT NULL);
CREATE TABLE leases (id, allocate_key UNIQUE, run, instance_id, image, node, container_id, state, reason, created_at,
    changed_at, expires_at, deadline_at, ttl, claimed, PRIMARY KEY (id));
INSERT INTO meta VALUES ('pool_id', 'older-pool');
PRAGMA user_version=1;
"""


def write_book_of_version_1(folder: Path, nodes: dict[str, int], *leases: tuple[object, ...]) -> None:
    """nodes: their capacities. It is the book of the first pool of a test."""
    with sqlite3.connect(folder / "pool0.sqlite3") as database:
        database.executescript(BOOK_OF_VERSION_1)
        for lease in leases:
            database.execute(f"INSERT INTO leases VALUES ({', '.join('?' * len(lease))})", lease)
        database.executemany("INSERT INTO nodes VALUES (?, ?, 0)", nodes.items())
    database.close()


def capacities(pool: RunningPool) -> dict[str, int]:
    return {url: node.capacity for url, node in pool.pool.fleet.nodes.items()}


async def test_the_default_capacity_can_be_changed_by_a_restart(nodes, pools) -> None:
    listed, joined = await nodes(), await nodes()
    pool = await pools(listed.url, capacity=30)
    await pool.post("/nodes", url=joined.url, capacity=3)
    await pool.post("/nodes/drain", url=listed.url)
    await pool.restart(listed.url, capacity=10)
    assert capacities(pool) == {listed.url: 10, joined.url: 3}
    assert pool.pool.fleet.nodes[listed.url].draining


async def test_a_node_that_left_stays_out_although_it_is_listed(nodes, pools, caplog: pytest.LogCaptureFixture) -> None:
    node = await nodes()
    pool = await pools(node.url)
    await pool.post("/nodes", url=node.url, capacity=3)
    assert (await pool.post("/nodes/leave", url=node.url))[0] == 200
    with caplog.at_level(logging.WARNING):
        await pool.restart(node.url + "/")
    assert capacities(pool) == {} and f"node {node.url} was taken out" in caplog.text
    assert (await pool.post("/nodes", url=node.url))[1]["capacity"] == 15, "it joins afresh"
    await pool.restart(node.url)
    assert (await pool.allocate("1"))[1]["node"] == node.url


async def test_a_node_that_left_the_list_too_may_be_listed_again(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    await pool.post("/nodes/leave", url=node.url)
    await pool.restart()
    await pool.restart(node.url)
    assert list(capacities(pool)) == [node.url]


async def test_a_book_of_the_version_before_is_taken_over(nodes, pools, tmp_path: Path) -> None:
    node = await nodes()
    now = time.time()
    lease = (
        "lease-1",
        "key-1-00",
        "default",
        "",
        "img",
        node.url,
        "c1",
        "open",
        "",
        now,
        now,
        now,
        now + 500,
        120.0,
        1,
    )
    write_book_of_version_1(tmp_path, {node.url: 30}, lease)
    node.containers["c1"] = {
        "labels": {"swe-rl.pool": "older-pool", "swe-rl.lease": "lease-1"},
        "name": "swe-rl-lease-1",
    }
    pool = await pools()
    assert capacities(pool) == {node.url: 30}
    assert (await pool.allocate("1"))[1]["lease_id"] == "lease-1"
    assert (await pool.allocate("2"))[0] == 200
    await pool.restart()
    assert len(pool.pool.book.active()) == 2 and len(node.containers) == 2


async def test_a_default_capacity_that_the_version_before_wrote_down_is_none_of_the_nodes_own(
    nodes, pools, tmp_path: Path
) -> None:
    listed, joined = await nodes(), await nodes()
    write_book_of_version_1(tmp_path, {listed.url: 15, joined.url: 3})
    pool = await pools(listed.url + "/", capacity=30)
    assert capacities(pool) == {listed.url: 30, joined.url: 3}
    await pool.restart(listed.url, capacity=10)
    assert capacities(pool) == {listed.url: 10, joined.url: 3}
    await pool.post("/nodes", url=listed.url, capacity=4)
    await pool.restart(listed.url, capacity=20)
    assert capacities(pool) == {listed.url: 4, joined.url: 3}, "what was said since then counts"


async def test_a_server_killed_while_a_node_left_frees_its_leases(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, lease = await pool.allocate("1")
    await pool.stop()
    with sqlite3.connect(pool.settings.database) as database:
        database.execute("UPDATE nodes SET gone=1")
    database.close()
    await pool.start(node.url)
    assert pool.pool.book.active() == []
    assert "taken out" in (await pool.post("/heartbeat", lease_id=lease["lease_id"]))[1]["gone"][lease["lease_id"]]


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`slow_disk(pool)`: writes about nodes wait for the event `.written`; `.asked` says that one has come."""

    class Slow:
        def __init__(self, pool: RunningPool) -> None:
            self.asked, self.written = asyncio.Event(), asyncio.Event()
            self._execute = pool.pool.store.execute
            monkeypatch.setattr(pool.pool.store, "execute", self.execute)

        async def execute(self, statements: Iterable[Statement]) -> None:
            statements = list(statements)
            if any("nodes" in sql for sql, _ in statements):
                self.asked.set()
                await self.written.wait()
            await self._execute(statements)

    return Slow


async def test_no_lease_is_placed_on_a_node_that_is_leaving(nodes, pools, slow_disk) -> None:
    node = await nodes()
    pool = await pools(node.url)
    await until(lambda: pool.pool.fleet.free_slots() == 15)
    disk = slow_disk(pool)
    leaving = asyncio.create_task(pool.post("/nodes/leave", url=node.url))
    await disk.asked.wait()
    assert (await pool.allocate("1", wait_s=0.2))[0] == 503
    disk.written.set()
    assert (await leaving)[0] == 200
    assert pool.pool.book.active() == [] and node.creates == 0


async def test_a_forced_leave_whose_caller_hangs_up_is_done_to_its_end(nodes, pools, slow_disk) -> None:
    node = await nodes()
    pool = await pools(node.url)
    await pool.allocate("1")
    disk = slow_disk(pool)
    leaving = asyncio.create_task(pool.post("/nodes/leave", url=node.url, force=True))
    await disk.asked.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert (await pool.post("/heartbeat"))[0] == 200  # the server has heard of it: one loop serves both connections
    disk.written.set()
    await until(lambda: capacities(pool) == {} and pool.pool.book.active() == [])


async def test_a_node_that_joins_again_while_it_leaves_keeps_its_leases(nodes, pools, slow_disk) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, lease = await pool.allocate("1")
    disk = slow_disk(pool)
    leaving = asyncio.create_task(pool.post("/nodes/leave", url=node.url, force=True))
    await disk.asked.wait()
    joining = asyncio.create_task(pool.post("/nodes", url=node.url))
    await until(lambda: not pool.pool.fleet.nodes[node.url].gone)
    disk.written.set()
    assert [(await answer)[0] for answer in (leaving, joining)] == [200, 200]
    assert capacities(pool) == {node.url: 15}
    assert list((await pool.post("/heartbeat", lease_id=lease["lease_id"]))[1]["leases"]) == [lease["lease_id"]]
    await pool.restart(node.url)
    assert len(pool.pool.book.active()) == 1 and len(node.containers) == 1


async def test_a_second_leave_of_a_node_does_not_take_out_the_one_that_has_joined_since(nodes, pools) -> None:
    pool = await pools((await nodes()).url)
    fleet = pool.pool.fleet
    (node,) = fleet.nodes.values()
    await fleet.leave(node)
    await asyncio.gather(fleet.leave(node), fleet.join(node.url))  # that leave was asked for during the first one
    assert capacities(pool) == {node.url: 15}
