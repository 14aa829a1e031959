"""What clients written for earlier exec servers send, and the conditions that they check in the answers."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import aiohttp
import pytest

from tests.docker_engine import TEST_IMAGE
from tests.exec_server.conftest import Box, new_box
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker
REPOSITORY = (
    "git init -q . && printf 'one\\ntwo\\n' > file && echo '*.o' > .gitignore && git add -A && git commit -qm base"
)
PATCH = "--- a/file\n+++ b/file\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"


async def call(server: ExecServer, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request as those clients make it: an error status raises, then `ok` must be true."""
    method = "GET" if body is None else "POST"
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.request(method, server.url + path, json=body) as response,
    ):
        answer = await response.json()
    assert answer.get("ok") is True, answer
    return answer


async def test_the_calls_of_an_older_pool(server: ExecServer) -> None:
    await call(server, "/healthz")
    images = await call(server, "/images")
    assert TEST_IMAGE in images["images"] and images["count"] == len(images["images"])
    assert all(isinstance(name, str) for name in images["images"])
    row = next(row for row in images["details"] if TEST_IMAGE in row["tags"])
    assert {"digests", "id", "size_bytes"} <= set(row)

    made = await call(server, "/container/create", {"image": TEST_IMAGE, "cwd": "/testbed"})
    name = {"container_id": made["name"]}
    run = {"cwd": "/testbed", "timeout": 180, "env": {}}
    result = await call(server, "/container/exec", {**name, **run, "command": f"{REPOSITORY}; echo done"})
    assert (result["returncode"], result["output"]) == (0, "done\n")
    await call(server, "/container/exec", {**name, **run, "command": "sed -i s/two/three/ file; touch leftover"})
    diff = await call(server, "/container/diff", {"container_id": made["container_id"], "cwd": "/testbed"})
    assert diff["returncode"] == 0 and "+three" in diff["patch"] and "b/leftover" in diff["patch"]
    body = {"container_id": made["container_id"], "patch": diff["patch"], "cwd": "/testbed", "timeout": 3600}
    for script, resolved in (("grep -q three file && test -e leftover", True), ("test ! -e leftover", False)):
        grade = await call(server, "/container/evaluate", {**body, "eval_script": script})
        assert (grade["resolved"], grade["returncode"]) == (resolved, 0 if resolved else 1), grade
    await call(server, "/container/destroy", {"container_id": made["container_id"]})
    status, gone = await server.post("/container/exec", **name, **run, command="true")
    assert (status, gone["ok"], gone["error"]["kind"]) == (404, False, "container_gone")


async def test_the_agents_own_container_is_put_back_before_it_is_graded(box: Box) -> None:
    """New files, edits, a lock that a killed git left and hooks steer nothing; what git ignores is the image's to keep."""
    await box.run(f"{REPOSITORY}; touch built.o")
    await box.run(
        "touch leftover conftest.py; mkdir new; git init -q new/inner; sed -i s/two/three/ file; touch .git/index.lock;"
        "git config core.hooksPath .git/h; mkdir .git/h; printf '#!/bin/sh\\ntouch /testbed/hooked' > .git/h/post-checkout;"
        "chmod +x .git/h/*; git config core.fsmonitor 'touch /testbed/watched; false'"
    )
    script = "grep -q three file && test -e built.o && test $(ls | wc -l) = 2"
    body = {"container_id": box.id, "patch": PATCH, "cwd": "/testbed", "eval_script": script}
    grade = await box.server.ok("/container/evaluate", **body)
    assert (grade["verdict"], grade["detail"]["applied_by"]) == ("resolved", "git-apply"), grade
    grade = await box.server.ok("/container/evaluate", **{**body, "eval_script": f"ls; {script} && false"})
    assert grade["returncode"] == 1 and grade["output"].split() == ["built.o", "file"]


async def test_an_empty_patch_leaves_the_agents_files(box: Box) -> None:
    await box.run(f"{REPOSITORY}; touch leftover")
    body = {"container_id": box.id, "patch": "", "cwd": "/testbed", "eval_script": "true"}
    assert (await box.server.ok("/container/evaluate", **body))["verdict"] == "no_patch"
    assert (await box.run("ls"))["output"].split() == ["file", "leftover"]


async def test_what_was_only_uploaded_to_is_graded_as_it_is(server: ExecServer, box: Box) -> None:
    await box.run(REPOSITORY)
    query = {"container_id": box.id, "path": "/testbed", "format": "tar"}
    fresh = await new_box(server, cwd="/testbed")
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        async with session.get(f"{server.url}/container/download", params=query) as answer:
            packed = await answer.read()
        headers = {"Content-Type": "application/x-tar"}
        where = {"container_id": fresh.id, "path": "/"}
        async with session.post(f"{server.url}/container/upload", params=where, data=packed, headers=headers) as answer:
            assert (await answer.json())["ok"] is True
        where["path"] = "/testbed/data"
        async with session.post(f"{server.url}/container/upload", params=where, data=b"x") as answer:
            assert (await answer.json())["ok"] is True
    body = {"container_id": fresh.id, "patch": PATCH, "eval_script": "test -e data && grep -q three file"}
    assert (await server.ok("/container/evaluate", **body))["verdict"] == "resolved"
    assert (await server.ok("/container/evaluate", **body))["verdict"] == "unresolved", "now it was worked in"
    await server.ok("/container/destroy", container_id=fresh.id)


async def upload_tar(box: Box, data: bytes, **query: str) -> tuple[int, dict[str, Any]]:
    query = {"container_id": box.id, "path": "/testbed", **query}
    async with (
        aiohttp.ClientSession(headers={"Content-Type": "application/x-tar"}) as session,
        session.post(f"{box.server.url}/container/upload", params=query, data=data) as answer,
    ):
        return answer.status, await answer.json()


def packed(name: str, size: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = size
        tar.addfile(info, io.BytesIO(bytes(size)))
    return made.getvalue()


async def test_a_tar_is_unpacked_once_for_its_key(box: Box) -> None:
    data = packed("inner", 5)
    for _ in range(2):
        assert await upload_tar(box, data, idempotency_key="the-tar") == (200, {"ok": True, "path": "/testbed"})
        await box.run("echo more >> inner")
    assert (await box.run("wc -l < inner"))["output"] == "2\n"
    status, answer = await upload_tar(box, data, idempotency_key="the-tar", path="/elsewhere")
    assert (status, answer["error"]["kind"]) == (409, "key_conflict")


@pytest.mark.parametrize("data", [b"no tar at all" * 1000, packed("inner", 100_000)[:50_000]])
async def test_a_broken_tar_is_the_callers_fault(box: Box, data: bytes) -> None:
    status, answer = await upload_tar(box, data, idempotency_key=f"broken{len(data)}")
    assert (status, answer["error"]["kind"]) == (400, "bad_request"), answer
    assert (await upload_tar(box, packed("inner", 5), path="/testbed/other"))[0] == 200
