"""Keys: the first answer is given again, while it runs, afterwards, and after a kill -9 of the server; nothing runs twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.docker_engine import TEST_IMAGE
from tests.exec_server.conftest import Box, new_box
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker
COUNT = "echo ran >> counter; wc -l < counter"


async def shown(server: ExecServer, *command: str) -> None:
    """Wait until the docker command prints something."""
    for _ in range(1200):
        if (await asyncio.to_thread(server.engine.docker, *command)).strip():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{command} printed nothing")


async def test_a_repeated_request_gets_the_first_answer(box: Box) -> None:
    body = {"container_id": box.id, "command": COUNT, "idempotency_key": uuid.uuid4().hex}
    answers = [await box.server.ok("/container/exec", **body) for _ in range(3)]
    assert [answer["output"] for answer in answers] == ["1\n"] * 3
    assert (await box.run("wc -l < counter"))["output"] == "1\n"


async def test_retries_join_a_command_under_way(box: Box) -> None:
    body = {"container_id": box.id, "command": f"sleep 1; {COUNT}", "idempotency_key": uuid.uuid4().hex}
    answers = await asyncio.gather(*(box.server.ok("/container/exec", **body) for _ in range(5)))
    assert [answer["output"] for answer in answers] == ["1\n"] * 5


async def test_the_key_may_come_as_a_header(box: Box) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(2):
            body = {"container_id": box.id, "command": COUNT}
            async with session.post(box.server.url + "/container/exec", json=body) as answer:
                assert (await answer.json())["output"] == "1\n"


async def test_a_key_of_another_request_is_refused(box: Box) -> None:
    key = uuid.uuid4().hex
    await box.run("true", idempotency_key=key)
    body = {"container_id": box.id, "command": "false", "idempotency_key": key}
    status, answer = await box.server.post("/container/exec", **body)
    assert (status, answer["error"]["kind"]) == (409, "key_conflict")


async def test_a_lost_answer_is_fetched_by_key(box: Box) -> None:
    body = {"container_id": box.id, "command": f"sleep 1; {COUNT}", "idempotency_key": uuid.uuid4().hex}
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(box.server.ok("/container/exec", **body), 0.5)  # the connection is cut
    assert (await box.server.ok("/container/exec", **body))["output"] == "1\n"


async def test_refused_before_any_effect_may_be_tried_again(server: ExecServer) -> None:
    body = {"container_id": "later", "command": "true", "idempotency_key": uuid.uuid4().hex}
    assert (await server.post("/container/exec", **body))[0] == 404
    box = await new_box(server, name="later")
    assert (await server.ok("/container/exec", **body))["returncode"] == 0
    await server.ok("/container/destroy", container_id=box.id)


async def test_answers_survive_a_kill(own_server: Callable[..., ExecServer]) -> None:
    server = own_server()
    box = await new_box(server)
    done = {"container_id": box.id, "command": COUNT, "idempotency_key": uuid.uuid4().hex}
    first = await server.ok("/container/exec", **done)
    server.kill()
    server.start()
    assert await server.ok("/container/exec", **done) == first
    assert (await box.run("echo works; wc -l < counter"))["output"] == "works\n1\n"


async def test_a_command_cut_by_a_kill_is_never_run_again(own_server: Callable[..., ExecServer]) -> None:
    server = own_server()
    box = await new_box(server)
    cut = {"container_id": box.id, "command": f"{COUNT}; sleep 30", "idempotency_key": uuid.uuid4().hex, "timeout": 60}
    running = asyncio.create_task(server.post("/container/exec", **cut))
    await shown(server, "exec", box.id, "ls", "/testbed")
    server.kill()
    with pytest.raises(aiohttp.ClientError):
        await running
    server.start()
    status, answer = await server.post("/container/exec", **cut)
    assert (status, answer["error"]["kind"]) == (500, "outcome_unknown")
    assert (await box.run("wc -l < counter", timeout=60))["output"] == "1\n", "and the container works on"


async def test_create_is_found_again_after_a_kill(own_server: Callable[..., ExecServer]) -> None:
    server = own_server()
    body = {"image": TEST_IMAGE, "name": "found", "idempotency_key": uuid.uuid4().hex}
    running = asyncio.create_task(server.post("/container/create", **body))
    await shown(server, "ps", "-aq", "--filter", "name=found")
    server.kill()
    await asyncio.gather(running, return_exceptions=True)
    server.start()
    made = await server.ok("/container/create", **body)
    assert len(server.engine.docker("ps", "-aq", "--filter", "label=swe-rl.managed").split()) == 1
    assert (await Box(server, made["container_id"]).run("echo ok"))["output"] == "ok\n"


def until_told(rest: str) -> str:
    """A command that shows that it has begun, and ends when `tell` is called."""
    return f"touch begun; until [ -e go ]; do sleep 0.05; done; {rest}"


async def begun(box: Box) -> None:
    await shown(box.server, "exec", box.id, "bash", "-c", "ls /testbed/begun 2>/dev/null || true")


async def tell(box: Box) -> None:
    await asyncio.to_thread(box.server.engine.docker, "exec", box.id, "touch", "/testbed/go")


async def test_after_sigterm_nothing_new_is_begun(own_server: Callable[..., ExecServer]) -> None:
    server = own_server()
    box = await new_box(server)
    long = {"container_id": box.id, "command": until_told(COUNT), "idempotency_key": uuid.uuid4().hex, "timeout": 300}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=600)) as session:

        async def post(**body: Any) -> tuple[int, dict[str, Any]]:
            async with session.post(f"{server.url}/container/exec", json=body) as answer:
                return answer.status, await answer.json()

        async def joined(count: int) -> None:
            for _ in range(1200):
                async with session.get(f"{server.url}/metrics") as answer:
                    if f"\nswe_exec_answers_replayed_total {count}.0" in await answer.text():
                        return
                await asyncio.sleep(0.05)
            raise AssertionError(f"{count} requests have not joined")

        running = [asyncio.create_task(post(**long)) for _ in range(3)]
        await begun(box)
        await joined(2)
        running[2].cancel()
        short = [asyncio.create_task(post(container_id="none", command="true")) for _ in range(3)]
        await asyncio.gather(*short)  # three kept-alive connections that are free
        ending = asyncio.create_task(asyncio.to_thread(server.stop_process))
        while (await post(container_id="none", command="true"))[0] == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        for key in ("", uuid.uuid4().hex):
            status, refused = await post(container_id=box.id, command=COUNT, idempotency_key=key)
            assert (status, refused["error"]["kind"], refused["error"]["retry"]) == (503, "stopping", True)
        late = asyncio.create_task(post(**long))
        await joined(3)
        await tell(box)
        answers = [await late, await running[0], await running[1]]
        assert [answer["output"] for _, answer in answers] == ["1\n"] * 3, "what runs may be joined"
    await ending
    server.start()
    assert (await box.run(COUNT))["output"] == "2\n"


async def test_sigterm_lets_commands_end(own_server: Callable[..., ExecServer]) -> None:
    server = own_server()
    box = await new_box(server)
    running = asyncio.create_task(box.run(until_told("echo ended"), timeout=300))
    await begun(box)
    ending = asyncio.create_task(asyncio.to_thread(server.stop_process))
    with pytest.raises(aiohttp.ClientError):  # refused, or dropped before it was let in
        while True:
            await server.post("/container/exec", container_id="none", command="true")
            await asyncio.sleep(0.05)
    await tell(box)
    assert (await running)["output"] == "ended\n"
    await ending
