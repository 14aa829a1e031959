"""One odd request, one that comes twice or one that comes late harms nobody: no slot leaks and the others are served."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from swe_rl.deadline import Deadline
from swe_rl.sandbox.pool import PoolProvider
from swe_rl.sandbox.pool_http import ServerRefusal
from swe_rl.sandbox.pool_server import node_api
from swe_rl.sandbox.pool_server.lease import Lease
from swe_rl.types import Task
from tests.pool.conftest import until


async def test_an_image_name_that_is_none_is_refused_and_stops_nobody(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    status, refused = await pool.allocate("odd", image="imgé")
    assert (status, refused["error"]["kind"]) == (400, "bad_request") and "image" in refused["error"]["message"]
    assert (await pool.allocate("plain"))[0] == 200


async def test_a_request_that_cannot_be_placed_stops_nobody(nodes, pools, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, first = await pool.allocate("first")
    choose = pool.pool.fleet.choose
    monkeypatch.setattr(pool.pool.fleet, "choose", lambda image, avoid: choose({"img": image}[image], avoid))
    assert (await pool.allocate("odd", image="odd"))[0] == 500
    assert (await pool.allocate("second"))[0] == 200
    await pool.post("/close", lease_id=first["lease_id"])
    assert pool.pool.book.used(node.url) == 1 and len(pool.pool.allocator.line) == 0
    seen = pool.pool.fleet.nodes[node.url].seen_at
    await until(lambda: pool.pool.fleet.nodes[node.url].seen_at > seen)  # its watcher lives


async def test_a_failure_to_serve_ends_no_watcher(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    await until(lambda: pool.pool.fleet.nodes[node.url].usable)
    served = pool.pool.fleet.on_capacity
    pool.pool.fleet.on_capacity = lambda: [][0]
    await asyncio.sleep(0.3)
    pool.pool.fleet.on_capacity = served
    seen = pool.pool.fleet.nodes[node.url].seen_at
    await until(lambda: pool.pool.fleet.nodes[node.url].seen_at > seen)
    assert (await pool.allocate("1"))[0] == 200


async def test_a_destroy_before_the_container_exists_does_not_answer_for_the_next(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, settle=30.0)
    node.create_gate.clear()
    waiting = asyncio.create_task(pool.allocate("1"))
    await until(lambda: node.creates == 1)
    await pool.restart()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: {"destroyed": False} in node.answers.values())
    node.create_gate.set()
    await until(lambda: any("container_id" in answer for answer in node.answers.values()))  # it was made all the same
    await until(lambda: node.containers == {}, within=5.0)


async def test_a_retry_keeps_the_lease_whose_first_caller_hung_up(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, abandon_grace=2.0)
    node.create_gate.clear()
    first = asyncio.create_task(pool.allocate("1"))
    await until(lambda: node.creates == 1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: not pool.pool.allocator._listeners)  # the server has heard of it
    node.create_gate.set()
    await until(lambda: [lease.state.value for lease in pool.pool.book.active()] == ["open"])
    status, lease = await pool.allocate("1")
    assert status == 200
    await asyncio.sleep(1.5 * pool.settings.abandon_grace)
    assert (await pool.post("/heartbeat", lease_id=lease["lease_id"]))[1]["gone"] == {}


async def test_a_retry_that_joins_must_ask_for_the_same(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    node.create_gate.clear()
    first = asyncio.create_task(pool.allocate("1"))
    await until(lambda: node.creates == 1)
    second = asyncio.create_task(pool.allocate("1", image="another"))
    third = asyncio.create_task(pool.allocate("1", deadline_s=10))
    await asyncio.sleep(0.1)
    node.create_gate.set()
    status, refused = await second
    assert (status, refused["error"]["kind"]) == (409, "key_conflict")
    assert (await first)[1]["lease_id"] == (await third)[1]["lease_id"]


@pytest.mark.parametrize("more", [{"network": True}, {"env": {"A": "1"}}, {"cwd": "/x"}, {"limits": {"pids": 9}}])
async def test_a_key_belongs_to_all_that_makes_a_sandbox(nodes, pools, more: dict[str, Any]) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, lease = await pool.allocate("1")
    for _ in range(2):
        status, refused = await pool.allocate("1", **more)
        assert (status, refused["error"]["kind"]) == (409, "key_conflict")
        assert (await pool.allocate("1", deadline_s=10))[1]["lease_id"] == lease["lease_id"]
        await pool.restart()


async def test_heartbeats_do_not_carry_a_lease_past_its_deadline(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, deadline_grace=0.3)
    _, lease = await pool.allocate("1")
    await pool.post("/heartbeat", leases={lease["lease_id"]: 0.01})
    for _ in range(20):
        _, answer = await pool.post("/heartbeat", leases={lease["lease_id"]: 0.0})
        await asyncio.sleep(0.05)
    assert "deadline" in answer["gone"][lease["lease_id"]]


async def test_close_all_lets_nobody_in(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, capacity=1)
    await pool.allocate("1")
    waiting = asyncio.create_task(pool.allocate("2"))
    await until(lambda: len(pool.pool.allocator.line) == 1)
    assert await pool.pool.close_all("the end", within=5.0) == 0
    for refused in (waiting, asyncio.create_task(pool.allocate("3"))):
        status, answer = await refused
        assert (status, answer["error"]["kind"]) == (503, "unavailable")
    assert (node.creates, node.containers) == (1, {})


async def test_close_all_ends_what_is_being_made(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    node.create_gate.clear()
    making = asyncio.create_task(pool.allocate("1"))
    await until(lambda: node.creates == 1)
    asyncio.get_running_loop().call_later(0.2, node.create_gate.set)
    assert await pool.pool.close_all("the end", within=5.0) == 0
    assert (await making)[0] == 503 and node.containers == {}


async def test_the_fleet_ends_in_the_moment_of_a_look(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, probe_interval=30.0)
    watched = pool.pool.fleet.nodes[node.url]
    await until(lambda: watched.usable)
    await asyncio.sleep(0.1)
    watched.look_now.set()
    await asyncio.sleep(0)
    await asyncio.wait_for(pool.pool.fleet.aclose(), 2)


async def test_a_leave_that_is_asked_for_again(nodes, pools) -> None:
    one, two = await nodes(), await nodes()
    pool = await pools(one.url, two.url)
    key = {"idempotency_key": "leave-once-1"}
    assert (await pool.post("/nodes", url=one.url, **key))[0] == 200
    assert (await pool.post("/nodes/drain", url=one.url, **key))[0] == 200
    answers = [await pool.post("/nodes/leave", url=one.url, **key) for _ in range(2)]
    assert answers == [(200, {"url": one.url, "state": "gone"})] * 2
    assert list(pool.pool.fleet.nodes) == [two.url]
    assert (await pool.post("/nodes/leave", url=one.url))[0] == 404, "without a key a misspelt name is said"


async def test_a_token_that_is_no_text_is_a_wrong_token(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, token="s3cret-token")
    reader, writer = await asyncio.open_connection("127.0.0.1", pool.port)
    writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"401"
    writer.close()


async def test_a_deadline_longer_than_a_node_takes_is_no_fault_of_the_request(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    assert (await pool.allocate("1", deadline_s=100_000))[0] == 200
    assert (await pool.allocate("2", deadline_s=7 * 86400))[0] == 200


async def test_a_place_that_becomes_free_when_the_time_is_up(nodes, pools, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await nodes()
    pool = await pools(node.url)
    await until(lambda: pool.pool.fleet.free_slots() == 15)
    save = pool.pool.book.save

    async def save_slowly(lease: Lease) -> None:
        await save(lease)
        await asyncio.sleep(0.3)

    monkeypatch.setattr(pool.pool.book, "save", save_slowly)
    status, refused = await pool.allocate("1", wait_s=0.2)
    assert (status, refused["error"]["kind"]) == (503, "unavailable")
    await until(lambda: pool.pool.book.active() == [])
    assert node.creates == 0


async def test_a_timeout_too_long_for_a_number_is_refused(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    _, lease = await pool.allocate("1")
    status, refused = await pool.post("/exec", lease_id=lease["lease_id"], command="x", timeout=int("9" * 400))
    assert (status, refused["error"]["kind"]) == (400, "bad_request")


async def test_a_file_too_large_to_pass_on_is_fetched_once(nodes, pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_api, "MAX_ANSWER_BYTES", 100_000)
    node = await nodes()
    pool = await pools(node.url)
    async with contextlib.aclosing(PoolProvider(pool.url, go_direct=False)) as provider:
        sandbox = await provider.open(Task("t-1", "", image="img"), deadline=Deadline(60), purpose="agent")
        assert len(await sandbox.download("/file", max_bytes=100_000)) == 100_000
        with pytest.raises(ServerRefusal, match="in parts") as refused:
            await sandbox.download("/file", max_bytes=100_001)
    assert (refused.value.status, refused.value.kind, node.downloads) == (413, "too_large", 2)


async def test_a_request_that_no_route_takes_or_nobody_can_read_is_refused_as_json(pools) -> None:
    pool = await pools()
    nested = b"[" * 100_000
    for path, body, kind in (
        ("/nowhere", b"{}", "not_found"),
        ("/healthz", b"{}", "method_not_allowed"),
        ("/exec", nested, "bad_request"),
        ("/allocate", nested, "bad_request"),
    ):
        async with pool.session.post(pool.url + path, data=body) as response:
            refused = await response.json()
        assert refused["ok"] is False and refused["error"]["kind"] == kind, refused
