"""/container/evaluate and /container/diff where something does not fit: never a verdict about the patch, never half a patch."""

from __future__ import annotations

import urllib.parse
import uuid
from typing import Any

import pytest

from tests.exec_server.conftest import Box, new_box
from tests.exec_server.server import ExecServer
from tests.exec_server.test_existing_clients import PATCH, REPOSITORY

pytestmark = pytest.mark.docker
SCRIPT = "grep -q three file"


async def test_the_folder_is_the_containers_where_none_is_named(server: ExecServer) -> None:
    box = await new_box(server, cwd="/work")
    await box.run(REPOSITORY)
    body = {"container_id": box.id, "patch": PATCH, "eval_script": SCRIPT}
    assert (await server.ok("/container/evaluate", **body))["verdict"] == "resolved"
    await server.ok("/container/destroy", container_id=box.id)


@pytest.mark.parametrize("folder", ["/nowhere", "/tmp", "/testbed/below", "/testbed/empty"])
@pytest.mark.parametrize("worked_in", [True, False])
async def test_a_folder_that_does_not_fit_is_no_verdict_about_the_patch(box: Box, folder: str, worked_in: bool) -> None:
    server = box.server
    await box.run(
        f"{REPOSITORY}; mkdir -p below empty; touch below/x; git add -A; git commit -qm below; git init -q empty"
    )
    if not worked_in:
        server.engine.docker("commit", box.id, "swe-rl/with-folders:1")
        body: dict[str, Any] = {"image": "swe-rl/with-folders:1"}
    else:
        body = {"container_id": box.id}
    grade = await server.ok("/container/evaluate", **body, patch=PATCH, eval_script=SCRIPT, cwd=folder)
    assert (grade["verdict"], grade["detail"]["kind"]) == ("infra_error", "StartingStateError"), grade
    assert grade["detail"]["reason"]


async def test_an_evaluation_says_what_took_how_long(box: Box) -> None:
    await box.run(REPOSITORY)
    body = {"container_id": box.id, "patch": PATCH, "eval_script": f"sleep 1; {SCRIPT}"}
    seconds = (await box.server.ok("/container/evaluate", **body))["seconds"]
    assert list(seconds) == ["open", "apply", "tests", "total"]
    assert seconds["tests"] >= 0.9 and all(value > 0 for value in seconds.values())
    assert sum(seconds.values()) <= 2 * seconds["total"] + 0.01


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"task": {"test_patch": 5}}, "task.test_patch"),
        ({"task": {"base_commit": 5}}, "task.base_commit"),
        ({"task": {"metadata": "x"}}, "task.metadata"),
        ({"task": {"fail_to_pass": "x"}}, "task.fail_to_pass"),
        ({"task": {"workdir": "below"}}, "task.workdir"),
        ({"task": {"test_patch": "no patch"}}, "no file section"),
        ({"eval_script": ""}, "eval_script"),
        ({"eval_script": "", "task": {"repo": "nobody/knows"}}, "nobody/knows"),
        ({"settings": {"swe_max_patch_bytes": "x"}}, "settings.swe_max_patch_bytes"),
        ({"container_id": "../info?"}, "container_id"),
    ],
)
async def test_what_makes_no_sense_is_a_bad_request_and_keeps_no_key(
    box: Box, body: dict[str, Any], named: str
) -> None:
    key = uuid.uuid4().hex
    sent = {"container_id": box.id, "patch": PATCH, "eval_script": SCRIPT, "idempotency_key": key, **body}
    for _ in range(2):
        status, answer = await box.server.post("/container/evaluate", **sent)
        assert (status, answer["error"]["kind"]) == (400, "bad_request"), answer
        assert named in answer["error"]["message"]


@pytest.mark.parametrize("name", ["../info?", "x?", "x#y", "x/y", "-x", "x\n", ""])
async def test_a_containers_name_reaches_no_other_route_of_the_engine(server: ExecServer, name: str) -> None:
    body = {"container_id": name, "command": "true", "patch": PATCH, "eval_script": SCRIPT}
    query = f"?{urllib.parse.urlencode({'container_id': name, 'path': '/testbed'})}"
    for route in ("exec", "diff", "destroy", "evaluate", f"upload{query}", f"download{query}"):
        status, answer = await server.post(f"/container/{route}", **body)
        assert (status, answer["error"]["kind"]) == (400, "bad_request"), (route, answer)
        assert "container_id" in answer["error"]["message"]


async def no_diff(box: Box, **body: Any) -> tuple[int, str]:
    """(status, kind) of a refusal."""
    status, answer = await box.server.post("/container/diff", container_id=box.id, **body)
    assert status >= 400 and "patch" not in answer, answer
    return status, answer["error"]["kind"]


async def test_a_diff_is_whole_or_none(box: Box) -> None:
    assert await no_diff(box, cwd="/testbed") == (404, "not_found"), "no repository"
    await box.run(REPOSITORY)
    assert await no_diff(box, cwd="/nowhere") == (404, "not_found")
    assert await no_diff(box, base_commit="0" * 40) == (404, "not_found")
    await box.run("head -c 9000000 /dev/urandom > big.bin")
    assert await no_diff(box) == (413, "too_large")
    await box.run("truncate -s 300M big.bin")
    assert await no_diff(box) == (413, "too_large")
    await box.run("rm big.bin; head -c 5242880 /dev/urandom > five.bin")
    answer = await box.server.ok("/container/diff", container_id=box.id)
    assert "GIT binary patch" in answer["patch"]
    for program, told, timeout in (("sleep 60", (504, "timed_out"), 2), ("exit 3", (422, "diff_failed"), 60)):
        await box.run(f"printf '#!/bin/sh\\n{program}\\n' > /usr/local/bin/git; chmod +x /usr/local/bin/git")
        assert await no_diff(box, timeout=timeout) == told
    await box.run(
        "rm /usr/local/bin/git; printf '#!/bin/sh\\necho nonsense!\\n' > /usr/local/bin/base64; chmod +x /usr/local/bin/base64"
    )
    assert await no_diff(box) == (422, "diff_failed")
