"""Clients that know no idempotency keys, send no heartbeats while they wait, and only ask whether it went well."""

from __future__ import annotations

import asyncio
import time

from swe_rl.sandbox.pool_server.lease import LeaseState
from tests.pool.conftest import until


async def test_clients_that_know_no_keys_and_only_ask_whether_it_went_well(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    status, lease = await pool.post("/allocate", image="img", instance_id="t-1")
    assert (status, lease["ok"]) == (200, True)
    assert (await pool.post("/allocate", image="img", instance_id="t-1"))[1]["lease_id"] != lease["lease_id"]
    assert (await pool.post("/heartbeat", lease_id=lease["lease_id"]))[1]["ok"] is True
    for _ in range(2):
        assert (await pool.post("/close", lease_id=lease["lease_id"]))[1]["ok"] is True
    assert (await pool.post("/heartbeat", lease_id=lease["lease_id"]))[1]["ok"] is False


async def test_the_key_of_an_allocate_may_come_as_a_header(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    answers = []
    for key in ("header-key-1", "header-key-1", "short"):
        request = pool.session.post(f"{pool.url}/allocate", json={"image": "img"}, headers={"Idempotency-Key": key})
        async with request as response:
            answers.append((response.status, (await response.json()).get("lease_id")))
    assert answers[0] == answers[1] and answers[0][0] == 200 and answers[2] == (400, None)


async def test_a_command_under_way_keeps_its_lease_until_the_deadline(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, tick_interval=600.0)
    _, answer = await pool.allocate("1")
    lease = pool.pool.book.leases[answer["lease_id"]]
    node.exec_gate.clear()
    running = asyncio.create_task(pool.post("/exec", lease_id=lease.id, command="x", timeout=100))
    await until(lambda: node.runs == ["x"])
    lease.expires_at -= 500
    await pool.pool.reaper.tick()
    assert lease.state is LeaseState.OPEN
    lease.deadline_at = time.time() - 1
    await pool.pool.reaper.tick()
    assert lease.state is LeaseState.CLOSING
    node.exec_gate.set()
    await running
    await until(lambda: lease.state is LeaseState.CLOSED)


async def test_a_command_that_ended_gives_a_fresh_time_to_live_and_no_more(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, tick_interval=600.0)
    _, answer = await pool.allocate("1", deadline_s=1000)
    lease = pool.pool.book.leases[answer["lease_id"]]
    lease.expires_at -= 500
    assert (await pool.post("/exec", lease_id=lease.id, command="x", timeout=100))[0] == 200
    assert lease.expires_at > time.time() + 60
    lease.expires_at -= 500
    await pool.pool.reaper.tick()
    await until(lambda: lease.state is LeaseState.CLOSED)
