"""What the pool server promises about leases, slots and keys, with nodes that fail on purpose."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import aiohttp
import pytest

from swe_rl.errors import DataError
from swe_rl.sandbox.pool_server.pool import Pool
from swe_rl.sandbox.pool_server.settings import PoolSettings
from tests.pool.conftest import until


async def test_the_life_of_a_lease(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    status, lease = await pool.allocate("a")
    assert status == 200 and lease["container_id"] in node.containers
    status, result = await pool.post(
        "/exec", lease_id=lease["lease_id"], command="true", timeout=5, idempotency_key="exec-key-1"
    )
    assert (status, result["output"]) == (200, "true")
    status, closed = await pool.post("/close", lease_id=lease["lease_id"])
    assert (status, closed["state"], node.containers) == (200, "closed", {})
    assert (await pool.post("/close", lease_id=lease["lease_id"]))[1]["state"] == "closed"
    status, refused = await pool.post("/exec", lease_id=lease["lease_id"], command="true", idempotency_key="exec-key-2")
    assert (status, refused["error"]["kind"]) == (410, "lease_gone")


async def test_a_retried_allocate_gets_the_first_lease(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    answers = await asyncio.gather(*(pool.allocate("same") for _ in range(5)))
    answers.append(await pool.allocate("same"))
    assert len({answer["lease_id"] for _, answer in answers}) == 1
    assert node.creates == 1
    assert (await pool.allocate("same", run="another"))[1]["error"]["kind"] == "key_conflict"


async def test_a_create_whose_answer_was_lost_leaves_one_container(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    node.lose_answers = 1
    status, lease = await pool.allocate("lost")
    assert status == 200 and node.creates == 1 and list(node.containers) == [lease["container_id"]]


async def test_a_full_pool_queues_until_the_callers_deadline(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, capacity=1)
    _, first = await pool.allocate("1")
    status, refused = await pool.allocate("2", wait_s=0.3)
    assert (status, refused["error"]["kind"]) == (503, "unavailable")
    waiting = asyncio.create_task(pool.allocate("3"))
    await until(lambda: len(pool.pool.allocator.line) == 1)
    await pool.post("/close", lease_id=first["lease_id"])
    assert (await waiting)[0] == 200


async def test_a_waiter_that_hangs_up_leaves_the_line(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, capacity=1)
    _, first = await pool.allocate("1")
    waiting = asyncio.create_task(pool.allocate("2"))
    await until(lambda: len(pool.pool.allocator.line) == 1)
    waiting.cancel()
    await until(lambda: len(pool.pool.allocator.line) == 0)
    await pool.post("/close", lease_id=first["lease_id"])
    assert pool.pool.book.used(node.url) == 0 and node.creates == 1


async def test_a_failed_destroy_keeps_the_slot_until_the_container_is_gone(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, capacity=1)
    _, lease = await pool.allocate("1")
    node.refuse_destroys = 10**6
    _, closing = await pool.post("/close", lease_id=lease["lease_id"], wait_s=0.1)
    assert closing["state"] == "closing" and pool.pool.book.used(node.url) == 1
    assert (await pool.allocate("2", wait_s=0.2))[0] == 503
    node.refuse_destroys = 0
    await until(lambda: pool.pool.book.used(node.url) == 0)
    assert node.containers == {}


async def test_a_lease_lives_by_heartbeats_and_expires_without(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, kept = await pool.allocate("kept")
    _, left = await pool.allocate("left")
    now, leases = time.time(), pool.pool.book.leases
    leases[kept["lease_id"]].expires_at, leases[left["lease_id"]].expires_at = now + 30, now - 1
    _, answer = await pool.post("/heartbeat", leases={kept["lease_id"]: 100.0})
    assert answer["leases"][kept["lease_id"]] > 90 and answer["gone"] == {}
    await until(lambda: list(node.containers) == [kept["container_id"]])
    _, answer = await pool.post("/heartbeat", lease_id=left["lease_id"])
    assert "expired" in answer["gone"][left["lease_id"]]


async def test_heartbeats_never_renew_past_the_callers_deadline(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, deadline_grace=1.0)
    _, lease = await pool.allocate("a", deadline_s=10)
    _, answer = await pool.post("/heartbeat", leases={lease["lease_id"]: 3.0})
    assert answer["leases"][lease["lease_id"]] <= 4.0


async def test_a_restart_keeps_open_leases_and_ends_half_made_ones(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, lease = await pool.allocate("open")
    node.create_gate.clear()
    waiting = asyncio.create_task(pool.allocate("half"))
    await until(lambda: node.creates == 2)
    pool_id = pool.pool.store.pool_id
    await pool.restart()
    node.create_gate.set()
    await asyncio.gather(waiting, return_exceptions=True)
    assert pool.pool.store.pool_id == pool_id
    assert (await pool.allocate("open"))[1]["lease_id"] == lease["lease_id"]
    await until(lambda: list(node.containers) == [lease["container_id"]] and pool.pool.book.used(node.url) == 1)


async def test_servers_that_restart_often_still_free_the_slot_of_an_unanswered_create(nodes, pools) -> None:
    """The time after which the node's list is believed runs through restarts."""
    node = await nodes()
    pool = await pools(node.url, settle=2.0)
    node.create_gate.clear()
    waiting = asyncio.create_task(pool.allocate("half"))
    await until(lambda: node.creates == 1)
    await pool.restart()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    for _ in range(8):
        await asyncio.sleep(0.5)
        if pool.pool.book.used(node.url) == 0:
            break
        await pool.restart()
    assert pool.pool.book.used(node.url) == 0


async def test_the_reaper_looks_in_both_directions(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, lease = await pool.allocate("a")
    labels = {"swe-rl.pool": pool.pool.store.pool_id, "swe-rl.lease": "never-known"}
    node.containers["orphan"] = {"labels": labels, "name": "x"}
    node.containers["foreign"] = {"labels": {"swe-rl.pool": "another-pool", "swe-rl.lease": "z"}, "name": "y"}
    await until(lambda: "orphan" not in node.containers)
    assert "foreign" in node.containers and lease["container_id"] in node.containers
    del node.containers[lease["container_id"]]
    await until(lambda: pool.pool.book.used(node.url) == 0)
    _, answer = await pool.post("/heartbeat", lease_id=lease["lease_id"])
    assert "no longer on the node" in answer["gone"][lease["lease_id"]]


async def test_placement_prefers_the_image_then_the_least_loaded(nodes, pools) -> None:
    plain, other, holder = await nodes(), await nodes(), await nodes(images=["img"])
    pool = await pools(plain.url, other.url, holder.url, capacity=2)
    await until(lambda: pool.pool.fleet.free_slots() == 6)
    taken = [(await pool.allocate(str(i)))[1]["node"] for i in range(4)]
    assert taken[:2] == [holder.url] * 2
    assert set(taken[2:]) == {plain.url, other.url}


async def test_a_broken_node_is_quarantined_and_comes_back(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    await until(lambda: pool.pool.fleet.nodes[node.url].usable)
    node.broken = True
    await until(lambda: pool.pool.fleet.nodes[node.url].state == "quarantined")
    assert (await pool.allocate("1", wait_s=0.2))[0] == 503
    node.broken = False
    assert (await pool.allocate("2"))[0] == 200


async def test_a_create_that_fails_on_one_node_goes_to_another(nodes, pools) -> None:
    bad, good = await nodes(images=["img"]), await nodes()
    bad.create_error = (500, "engine_error")
    pool = await pools(bad.url, good.url)
    await until(lambda: pool.pool.fleet.free_slots() == 30)
    status, lease = await pool.allocate("1")
    assert (status, lease["node"]) == (200, good.url)
    await until(lambda: pool.pool.book.used(bad.url) == 0)


@pytest.mark.parametrize(("status", "kind"), [(404, "image_missing"), (422, "image_unusable")])
async def test_an_image_that_no_node_can_use_is_said_at_once(nodes, pools, status: int, kind: str) -> None:
    one, two = await nodes(), await nodes()
    one.create_error = two.create_error = (status, kind)
    pool = await pools(one.url, two.url)
    await until(lambda: pool.pool.fleet.free_slots() == 30)
    answered, refused = await pool.allocate("1")
    assert (answered, refused["error"]["kind"]) == (status, kind)


async def test_nodes_join_drain_and_leave_while_it_runs(nodes, pools) -> None:
    first, second = await nodes(), await nodes()
    pool = await pools(first.url)
    _, lease = await pool.allocate("1")
    assert (await pool.post("/nodes", url=second.url, capacity=3))[0] == 200
    assert (await pool.post("/nodes/drain", url=first.url))[1]["used"] == 1
    assert (await pool.allocate("2"))[1]["node"] == second.url
    status, refused = await pool.post("/nodes/leave", url=first.url)
    assert (status, refused["error"]["kind"]) == (409, "node_busy")
    assert (await pool.post("/exec", lease_id=lease["lease_id"], command="x", idempotency_key="k-12345678"))[0] == 200
    await pool.post("/close", lease_id=lease["lease_id"])
    assert (await pool.post("/nodes/leave", url=first.url))[0] == 200
    await pool.restart()
    assert list(pool.pool.fleet.nodes) == [second.url]
    assert pool.pool.fleet.nodes[second.url].capacity == 3


async def test_force_lets_a_dead_machine_leave_with_its_leases(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, lease = await pool.allocate("1")
    url = node.url
    await node.stop()
    assert (await pool.post("/nodes/leave", url=url, force=True))[0] == 200
    assert lease["lease_id"] in (await pool.post("/heartbeat", lease_id=lease["lease_id"]))[1]["gone"]
    assert pool.pool.book.active() == []


async def test_a_node_that_leaves_while_it_creates_does_not_come_back(nodes, pools) -> None:
    leaving, staying = await nodes(images=["img"]), await nodes()
    pool = await pools(leaving.url, staying.url)
    await until(lambda: pool.pool.fleet.free_slots() == 30)
    leaving.create_gate.clear()
    waiting = asyncio.create_task(pool.allocate("1"))
    await until(lambda: leaving.creates == 1)
    assert (await pool.post("/nodes/leave", url=leaving.url, force=True))[0] == 200
    leaving.create_gate.set()
    status, lease = await waiting
    assert (status, lease["node"]) == (200, staying.url)
    assert pool.pool.book.used(leaving.url) == 0 and len(pool.pool.book.active()) == 1


async def test_callers_need_the_token_and_well_formed_bodies(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, token="s3cret-token")
    async with aiohttp.ClientSession() as stranger:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret-token"}):
            async with stranger.post(f"{pool.url}/allocate", json={}, headers=headers) as response:
                assert response.status == 401 and "s3cret" not in await response.text()
        async with stranger.get(f"{pool.url}/healthz") as response:
            assert response.status == 200
    status, refused = await pool.post("/allocate", image="", idempotency_key="short", surprise=1)
    assert status == 400 and {"image", "idempotency_key", "surprise"} <= set(
        refused["error"]["message"].replace(":", " ").split()
    )
    for timeout in (-1, "soon", 1e12, float("inf")):
        _, lease = await pool.allocate("t")
        body = {"lease_id": lease["lease_id"], "command": "x", "timeout": timeout}
        assert (await pool.post("/exec", **body))[0] == 400


async def test_status_is_readable_by_people_and_escapes_what_callers_wrote(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    await pool.allocate("1", instance_id="<script>alert(1)</script>")
    async with pool.session.get(f"{pool.url}/status", headers={"Accept": "text/html"}) as response:
        text = await response.text()
    assert node.url in text and "<script>" not in text and "&lt;script&gt;" in text
    async with pool.session.get(f"{pool.url}/status") as response:
        status = await response.json()
    assert (status["capacity"], status["free"], len(status["leases"])) == (15, 14, 1)
    async with pool.session.get(f"{pool.url}/metrics") as response:
        text = await response.text()
    assert 'swe_pool_leases{state="open"} 1.0' in text and 'route="/allocate",status="200"' in text


async def test_one_book_has_one_server(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    second = Pool(PoolSettings(database=pool.settings.database))
    with pytest.raises(DataError, match="another pool server"):
        await second.start([])
    await second.api.aclose()


async def test_a_file_that_is_no_book_is_refused(tmp_path) -> None:
    path = tmp_path / "pool.sqlite3"
    path.write_bytes(b"not a database, but long enough to be read as one" * 50)
    with pytest.raises(DataError, match=r"pool\.sqlite3"):
        await Pool(PoolSettings(database=str(path))).start([])
    newer = tmp_path / "newer.sqlite3"
    with sqlite3.connect(newer) as database:
        database.execute("PRAGMA user_version=99")
    with pytest.raises(DataError, match="another version"):
        await Pool(PoolSettings(database=str(newer))).start([])


async def test_after_a_pause_of_the_process_leases_get_a_fresh_ttl(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, lease = await pool.allocate("1")
    pool.pool.reaper._last_tick -= 1000  # as after a suspended machine
    pool.pool.book.leases[lease["lease_id"]].expires_at -= 1000
    await pool.pool.reaper.tick()
    assert lease["container_id"] in node.containers
    assert (await pool.post("/heartbeat", lease_id=lease["lease_id"]))[1]["gone"] == {}
