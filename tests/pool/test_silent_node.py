"""A node that falls silent cuts no connection: whoever waits for it hears so, and a node that is only slow is not lost."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError
from swe_rl.sandbox import pool_sandbox
from swe_rl.sandbox.pool import PoolProvider
from swe_rl.sandbox.pool_server.node_api import NodeApi, NodeUnreachable
from swe_rl.types import Task
from tests.pool.conftest import until
from tests.pool.cut_proxy import CutProxy

TASK = Task(instance_id="t-1", problem_statement="", image="img")
SOON = {"probe_timeout": 0.2, "silent_after": 0.3}


@pytest.mark.parametrize("go_direct", [True, False], ids=["direct", "through the pool"])
async def test_a_node_that_falls_silent_under_a_command_is_an_infra_error(nodes, pools, monkeypatch, go_direct) -> None:
    node = await nodes()
    proxy = await CutProxy(node.server.port).start()
    pool = await pools(proxy.url)
    fleet = pool.pool.fleet
    async with contextlib.aclosing(PoolProvider(pool.url, go_direct=go_direct, heartbeat_interval=0.1)) as provider:
        sandbox = await provider.open(TASK, deadline=Deadline(900), purpose="agent")
        node.exec_gate.clear()
        running = asyncio.create_task(sandbox.exec("sleep", timeout=600))
        await until(lambda: node.runs == ["sleep"])
        with monkeypatch.context() as impatient:
            impatient.setattr(pool_sandbox, "NODE_LOST_SECONDS", 0.3)
            impatient.setattr(pool_sandbox, "PROBE_SECONDS", 0.3, raising=False)
            impatient.setattr(fleet, "_settings", SimpleNamespace(**{**asdict(pool.settings), **SOON}))
            seen = fleet.nodes[proxy.url].seen_at
            await until(lambda: fleet.nodes[proxy.url].seen_at > seen)
            proxy.silent = True
            with pytest.raises(SandboxError, match="has not answered"):
                await asyncio.wait_for(running, 30)
        assert [lease.state.value for lease in pool.pool.book.active()] == ["open"], (
            "its owner closes it, or it expires"
        )
        proxy.silent = False
        proxy.cut()
        node.exec_gate.set()
        assert (await sandbox.exec("again", timeout=60)).output == "again", "a node that comes back is used on"
    await proxy.stop()


@pytest.mark.parametrize("broken", [False, True], ids=["answers", "answers with errors"])
async def test_a_node_that_the_pool_alone_cannot_hear_is_not_lost(nodes, pools, monkeypatch, broken) -> None:
    monkeypatch.setattr(pool_sandbox, "NODE_LOST_SECONDS", 0.0)
    node = await nodes()
    pool = await pools(node.url)
    async with contextlib.aclosing(PoolProvider(pool.url)) as provider:
        sandbox = await provider.open(TASK, deadline=Deadline(900), purpose="agent")
        node.exec_gate.clear()
        running = asyncio.create_task(sandbox.exec("sleep", timeout=600))
        await until(lambda: node.runs == ["sleep"])
        node.broken = broken
        await sandbox.node_silent("says the pool")
        node.exec_gate.set()
        assert (await running).output == "sleep"


async def test_a_command_that_has_just_begun_waits_on(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    async with contextlib.aclosing(PoolProvider(pool.url, go_direct=False)) as provider:
        sandbox = await provider.open(TASK, deadline=Deadline(900), purpose="agent")
        node.exec_gate.clear()
        running = asyncio.create_task(sandbox.exec("sleep", timeout=600))
        await until(lambda: node.runs == ["sleep"])
        await sandbox.node_silent("says the pool")
        node.exec_gate.set()
        assert (await running).output == "sleep"


@pytest.mark.parametrize("fault", ["broken", "mute"])
async def test_a_node_that_answers_anything_is_not_silent(nodes, pools, fault) -> None:
    """broken: errors, and between two looks at it nothing; mute: its /status never comes, but it says that it lives."""
    node = await nodes()
    pool = await pools(node.url, silent_after=0.3, max_backoff=2)
    _, lease = await pool.allocate("1")
    health = pool.pool.fleet.nodes[node.url].health
    setattr(node, fault, True)
    answers = []
    while health.fails < 6:  # the pauses are longer than `silent_after` by then
        answers.append((await pool.post("/heartbeat", lease_id=lease["lease_id"]))[1])
        await asyncio.sleep(0.02)
    assert not health.healthy and lease["lease_id"] in answers[-1]["leases"]
    assert [answer["silent"] for answer in answers if answer["silent"]] == []


async def test_silence_is_the_time_over_which_requests_went_unanswered(nodes) -> None:
    node, api = await nodes(), NodeApi("")

    async def ask(path: str) -> int:
        return (await api.send(node.url, path, timeout=60)).status

    async with contextlib.aclosing(api):
        node.mute = True
        for _ in range(2):
            assert api.unanswered(node.url) == 0, "one lost answer is a moment, however long nobody asks again"
            with pytest.raises(NodeUnreachable):
                await ask("/status")
        assert api.unanswered(node.url) > 0
        node.broken = True
        assert await ask("/healthz") == 503
        assert api.unanswered(node.url) == 0, "an error is an answer"


async def test_a_node_is_not_silent_before_several_looks_in_a_row_have_failed(nodes, pools) -> None:
    pool = await pools((await nodes()).url, silent_after=0.0)
    fleet = pool.pool.fleet
    (node,) = fleet.nodes.values()
    await until(lambda: node.health.healthy)
    pool.pool.api.unanswered = lambda url: 1000.0
    assert fleet.silence(node.url) == 0.0
    node.health.healthy = False
    assert fleet.silence(node.url) == 1000.0
