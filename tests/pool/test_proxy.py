"""What the pool passes on to a node, with a real engine behind it: patches byte-exact, verdicts, each request once."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.docker_engine import TEST_IMAGE, Engine
from tests.pool.plane import ServerProcess, exec_server, pool_server

pytestmark = pytest.mark.docker
TOKEN = "token-of-this-test"
FILES = "printf 'one\\ntwo\\n' > file && printf '\\000\\001\\377' > blob"
REPOSITORY = f"git init -q . && {FILES} && git add -A && git commit -qm base"
CHANGE = "echo three >> file; printf '\\000\\002\\376more' > blob; printf 'caf\\351\\n' > latin; printf '\\377\\000' > new.bin"
CHANGED = "tail -1 file | grep -qx three && test $(od -An -tx1 blob | tr -d ' \\n') = 0002fe6d6f7265 && test -s new.bin"


class Pool:
    """HTTP to a running pool server."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session

    async def post(self, path: str, *, key: str = "", **body: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Idempotency-Key": key} if key else {}
        async with self._session.post(self._url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def lease(self) -> str:
        """A sandbox with a committed repository."""
        body = {"image": TEST_IMAGE, "cwd": "/testbed", "idempotency_key": uuid.uuid4().hex, "deadline_s": 300}
        status, lease = await self.post("/allocate", **body)
        assert status == 200, lease
        assert (await self.run(lease["lease_id"], REPOSITORY))["returncode"] == 0
        return str(lease["lease_id"])

    async def run(self, lease: str, command: str, **more: Any) -> dict[str, Any]:
        status, result = await self.post("/exec", lease_id=lease, command=command, **more)
        assert status == 200, result
        return result


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    folder: Path = tmp_path_factory.mktemp("proxy")
    node = exec_server(folder / "node", engine.host, token=TOKEN)
    await node.start()
    pool = pool_server(folder / "pool", [node.url], token=TOKEN, flags=("--close-at-exit",))
    await pool.start()
    yield node, pool
    await pool.stop()
    await node.stop()
    assert engine.docker("ps", "-aq", "--filter", "label=swe-rl.pool") == ""


@pytest.fixture
async def pool(servers: tuple[ServerProcess, ServerProcess]) -> AsyncIterator[Pool]:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        yield Pool(servers[1].url, session)


async def test_a_binary_patch_leaves_one_sandbox_and_resolves_in_another(pool: Pool) -> None:
    agent = await pool.lease()
    await pool.run(agent, CHANGE)
    status, diff = await pool.post("/diff", lease_id=agent, cwd="/testbed")
    assert status == 200 and "GIT binary patch" in diff["patch"]
    patch = base64.b64decode(diff["patch_base64"])
    assert b"+caf\xe9\n" in patch, "a file in Latin-1 makes the patch no UTF-8: it comes in base64 beside the text"
    fields = {"cwd": "/testbed", "timeout": 60, "patch_base64": diff["patch_base64"]}
    grades = {}
    for script in (CHANGED, f"{CHANGED} && false"):
        status, grade = await pool.post("/evaluate", lease_id=await pool.lease(), eval_script=script, **fields)
        assert status == 200, grade
        grades[grade["verdict"]] = grade["resolved"], grade["returncode"]
    assert grades == {"resolved": (True, 0), "unresolved": (False, 1)}


async def test_a_diff_of_nothing_is_empty(pool: Pool) -> None:
    status, diff = await pool.post("/diff", lease_id=await pool.lease(), cwd="/testbed")
    assert (status, diff) == (200, {"ok": True, "patch": "", "returncode": 0})


async def test_an_evaluation_runs_once_for_its_key(pool: Pool) -> None:
    lease = await pool.lease()
    patch = "--- a/file\n+++ b/file\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
    fields = {"lease_id": lease, "cwd": "/testbed", "patch": patch, "timeout": 60}
    fields |= {"eval_script": "echo ran >> /tmp/counter; grep -q three file", "idempotency_key": uuid.uuid4().hex}
    answers = [await pool.post("/evaluate", **fields) for _ in range(3)]
    assert answers[0][1]["verdict"] == "resolved" and answers[1] == answers[0] == answers[2]
    assert (await pool.run(lease, "wc -l < /tmp/counter"))["output"] == "1\n"
    status, refused = await pool.post("/evaluate", **{**fields, "patch": ""})
    assert (status, refused["error"]["kind"]) == (409, "key_conflict")


async def test_the_key_may_come_as_a_header(pool: Pool) -> None:
    lease, key = await pool.lease(), uuid.uuid4().hex
    for _ in range(2):
        result = await pool.run(lease, "echo ran >> /tmp/counter; wc -l < /tmp/counter", key=key)
        assert result["output"] == "1\n"


async def test_what_the_node_refuses_is_passed_on(pool: Pool) -> None:
    status, refused = await pool.post("/evaluate", lease_id=await pool.lease(), patch_base64="no base64", timeout=30)
    assert (status, refused["error"]["kind"]) == (400, "bad_request")
    assert "patch_base64" in refused["error"]["message"]
