"""What a request or an operator may ask of the engine at the edges: the least limits, too many processors, a name twice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from swe_rl.sandbox.container.engine import Engine as EngineApi
from swe_rl.sandbox.container.limits import LEAST, Limits, host_config
from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.conftest import new_box
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker


async def test_the_engine_takes_the_lowest_limits(engine: Engine) -> None:
    """Made, not started: what a shell needs is up to the kernel and the runtime."""
    api = EngineApi(engine.host)
    host = host_config(Limits().narrowed(LEAST), disk_quota=False)
    made = await api.create({"Image": TEST_IMAGE, "HostConfig": host}, None)
    try:
        kept = (await api.inspect(made))["HostConfig"]
        assert (kept["Memory"], kept["PidsLimit"], kept["NanoCpus"]) == (6 << 20, 32, 10**7)
    finally:
        await api.remove(made)
        await api.aclose()


async def test_low_limits_leave_a_container_that_works(server: ExecServer) -> None:
    box = await new_box(server, limits={"memory_mb": 32, "pids": LEAST["pids"]})
    assert (await box.run("seq 3 | sort -r | cat"))["output"] == "3\n2\n1\n"
    for name, least in LEAST.items():
        status, answer = await server.post("/container/create", image=TEST_IMAGE, limits={name: least / 2})
        assert (status, answer["error"]["kind"]) == (400, "bad_request") and str(least) in answer["error"]["message"]


async def test_more_processors_than_there_are_means_all_of_them(own_server: Callable[..., ExecServer]) -> None:
    server = own_server("--cpus", "100000")
    box = await new_box(server)
    there = int(server.engine.docker("info", "--format", "{{.NCPU}}"))
    assert json.loads(server.engine.docker("inspect", box.id))[0]["HostConfig"]["NanoCpus"] == there * 10**9


async def test_a_name_is_given_once(server: ExecServer) -> None:
    await new_box(server, name="the-only-one")
    status, answer = await server.post("/container/create", image=TEST_IMAGE, name="the-only-one")
    assert (status, answer["error"]["kind"]) == (409, "name_conflict"), answer
    await server.ok("/container/destroy", container_id="the-only-one")
