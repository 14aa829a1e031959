"""A supervisor that is lost, busy with another server's command, stopped or dead is replaced; no command runs twice or cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from swe_rl.sandbox.container import native, recovery
from swe_rl.sandbox.container.container import Container, Spec
from swe_rl.sandbox.container.engine import Engine as EngineApi
from swe_rl.sandbox.container.limits import Limits
from swe_rl.sandbox.container.supervisor import FRESH_SECONDS
from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.conftest import Box, new_box
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", params=["compiled", "script"])
def supervisor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


KEEP = "echo kept > file; echo kept > /dev/shm/file"
KEPT = "cat file /dev/shm/file"


async def begun(box: Box) -> None:
    """Wait until a command has left the file `ran`."""
    while "x" not in await docker(box, "exec", box.id, "bash", "-c", "cat /testbed/ran || true"):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def docker(box: Box, *command: str) -> str:
    return await asyncio.to_thread(box.server.engine.docker, *command)


async def started_at(box: Box) -> str:
    return json.loads(await docker(box, "inspect", box.id))[0]["State"]["StartedAt"]


async def works(box: Box) -> None:
    """Deadline, output bound and return code hold as ever."""
    late = await box.run("echo early; setsid sleep 1010 & sleep 1011", timeout=1)
    assert (late["returncode"], late["timed_out"], late["output"]) == (124, True, "early\n")
    long = await box.run("yes | head -c 3000000; exit 3")
    assert (long["returncode"], long["truncated"], len(long["output"]) < 1_100_000) == (3, True, True)
    await box.ended("sleep")


async def test_a_stopped_supervisor_is_stood_in_for(box: Box) -> None:
    await box.run(KEEP)
    before = await started_at(box)
    await docker(box, "kill", "-s", "STOP", box.id)
    await asyncio.sleep(FRESH_SECONDS)
    try:
        assert (await box.run(KEPT, timeout=60))["output"] == "kept\nkept\n"
        await works(box)
        # The stand-in is no first process: a command may kill it. What became of that command is then unknown ...
        status, answer = await box.server.post("/container/exec", container_id=box.id, command="kill -9 $PPID; sleep 9")
        assert (status, answer["error"]["kind"]) == (500, "outcome_unknown")
        # ... and the next one gets another.
        assert (await box.run(KEPT, timeout=60))["output"] == "kept\nkept\n"
    finally:
        await docker(box, "kill", "-s", "CONT", box.id)
    assert (await box.run(KEPT, timeout=60))["output"] == "kept\nkept\n"
    assert await started_at(box) == before, "the container was not started again"


async def test_a_dead_supervisor_is_started_again(box: Box) -> None:
    await box.run("echo kept > file")
    running = asyncio.create_task(
        box.server.post("/container/exec", container_id=box.id, command="echo x >> ran; sleep 60", timeout=90)
    )
    await begun(box)
    await docker(box, "kill", box.id)
    status, answer = await running
    assert (status, answer["error"]["kind"]) == (500, "outcome_unknown")
    assert (await box.run("cat file ran"))["output"] == "kept\nx\n", "files stay, and the command ran once"


async def test_a_command_of_an_earlier_server_is_ended(own_server: Callable[..., ExecServer]) -> None:
    server = own_server()
    box = await new_box(server)
    await box.run(KEEP)
    before = await started_at(box)
    lost = asyncio.create_task(box.run("echo x >> ran; sleep 300; echo y >> ran", timeout=400))
    await begun(box)
    server.kill()
    await asyncio.gather(lost, return_exceptions=True)
    server.start()
    assert (await box.run(f"{KEPT} ran", timeout=60))["output"] == "kept\nkept\nx\n"
    assert await started_at(box) == before
    await works(box)


@pytest_asyncio.fixture
async def api(engine: Engine, supervisor: str) -> AsyncIterator[EngineApi]:
    made = EngineApi(engine.host)
    made.program = native.build() if supervisor == "compiled" else ""
    yield made
    await made.aclose()


@pytest.mark.parametrize("missing", [20, 2000])
async def test_half_a_command_is_not_run(api: EngineApi, missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "HELLO_SECONDS", 2.0)
    first = await Container.create(api, Spec(TEST_IMAGE, "/testbed", limits=Limits(256, 1.0, 96)))
    try:
        command = b"touch /testbed/ran #" + b"x" * 100
        frame = b"run 0123 30000 1000448 500001 4 %d builtin\ntrue" % (len(command) + missing) + command
        assert first._supervisor is not None
        await first._supervisor._stream.write_in(frame)  # and here its sender dies
        await first.detach()
        second = await Container.find(api, first.id)
        answer = await second.exec("ls", timeout=60)
        assert (answer.returncode, answer.output) == (0, "")
        await second.detach()
    finally:
        await first.destroy()
