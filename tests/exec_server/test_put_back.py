"""What /container/evaluate leaves of a container that was worked in: what its image holds, and nothing that came later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from swe_rl.sandbox.exec_server.put_back import superfluous
from tests.exec_server.conftest import Box, new_box
from tests.exec_server.server import ExecServer
from tests.exec_server.test_existing_clients import PATCH, REPOSITORY

IMAGE = "swe-rl/with-files:1"
# Beside its commit: hidden tests, an environment, a nested repository, an empty folder, an edit, a name that is odd.
HELD = (
    f"{REPOSITORY}; echo pinned > setup.cfg; git add -A; git commit -qm setup; echo edited > setup.cfg;"
    "printf 'grep -q three file' > run_tests.sh; mkdir -p r2e_tests .venv/bin inner logs;"
    "git init -q inner; touch r2e_tests/test_1.py .venv/bin/python inner/code 'an [odd]\n*name';"
    # Staged only: a repository as a link, and a file that git is told to ignore.
    "git init -q linked; git -C linked commit -q --allow-empty -m x; git add linked;"
    "echo built > built.log; echo '*.log' >> .git/info/exclude; git add -f built.log"
)
WHOLE = (
    "bash run_tests.sh && test -e r2e_tests/test_1.py -a -e .venv/bin/python -a -e inner/code -a -d logs -a -e an* &&"
    "test -d linked/.git -a -e built.log && grep -q edited setup.cfg && test $(ls -A | wc -l) = 13"  # lines
)
AGENT = (
    "touch conftest.py r2e_tests/conftest.py logs/log; mkdir -p new/folder; touch new/folder/file;"
    "git init -q other; echo x > setup.cfg; rm -r .gitignore"
)


@pytest_asyncio.fixture
async def image(box: Box) -> AsyncIterator[str]:
    """An image with a repository, made by a container of the module's server."""
    docker = box.server.engine.docker
    await box.run(HELD)
    await asyncio.to_thread(docker, "commit", box.id, IMAGE)
    yield IMAGE
    await asyncio.to_thread(docker, "rmi", "-f", IMAGE)


async def grade(box: Box, script: str, patch: str = PATCH, **fields: Any) -> dict[str, Any]:
    body = {"container_id": box.id, "patch": patch, "eval_script": script, **fields}
    return await box.server.ok("/container/evaluate", **body)


@pytest.mark.docker
@pytest.mark.parametrize("work", ["true", AGENT, f"{AGENT}; git add -A; git commit -qm work"])
async def test_what_the_image_holds_stays_and_nothing_else(server: ExecServer, image: str, work: str) -> None:
    box = await new_box(server, image=image)
    await box.run(work)
    for _ in range(2):  # the second time the server knows the image
        found = await grade(box, WHOLE)
        assert found["verdict"] == "resolved", (found, await box.run("ls -A; git status --short"))
    assert (await server.ok("/container/destroy", container_id=box.id))["destroyed"]


@pytest.mark.docker
async def test_commits_stay_where_the_task_names_its_base(server: ExecServer, image: str) -> None:
    box = await new_box(server, image=image)
    base = (await box.run("git rev-parse HEAD; touch set-up; git add set-up; git commit -qm set-up"))["output"].strip()
    script = "test -e set-up"
    assert (await grade(box, script, task={"base_commit": base}))["verdict"] == "resolved"
    assert (await grade(box, script))["verdict"] == "unresolved"
    assert (await server.ok("/container/destroy", container_id=box.id))["destroyed"]


@pytest.mark.docker
async def test_after_a_restart_it_is_known_where_commands_ran(
    own_server: Callable[..., ExecServer], image: str
) -> None:
    server = own_server()
    worked_in, uploaded_to = [await new_box(server, image=image) for _ in range(2)]
    await worked_in.run(AGENT)
    where = {"container_id": uploaded_to.id, "path": "/testbed/data"}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{server.url}/container/upload", params=where, data=b"x"),
    ):
        pass
    server.kill()
    server.start()
    assert (await grade(worked_in, WHOLE))["verdict"] == "resolved"
    for script, verdict in (("bash run_tests.sh && test -e data", "resolved"), ("test -e data", "unresolved")):
        assert (await grade(uploaded_to, script))["verdict"] == verdict


@pytest.mark.docker
async def test_evaluations_of_one_container_do_not_mix(box: Box) -> None:
    await box.run(REPOSITORY)
    script = "test ! -e trace && touch trace && grep -q three file"
    grades = await asyncio.gather(*(grade(box, script) for _ in range(3)))
    assert [(found["verdict"], found["detail"]["applied_by"]) for found in grades] == [("resolved", "git-apply")] * 3


@pytest.mark.docker
async def test_an_evaluation_waits_no_longer_than_its_time_for_another(box: Box) -> None:
    docker = box.server.engine.docker
    await box.run(f"{REPOSITORY}; mkfifo /tmp/begun /tmp/go")
    first = asyncio.create_task(grade(box, "echo > /tmp/begun; cat /tmp/go", timeout=120))
    await asyncio.to_thread(docker, "exec", box.id, "cat", "/tmp/begun")
    body = {"container_id": box.id, "patch": PATCH, "eval_script": "true", "timeout": 0.2}
    status, answer = await box.server.post("/container/evaluate", **body)
    assert (status, answer["error"]["kind"], answer["error"]["retry"]) == (409, "container_busy", True)
    assert "another evaluation" in answer["error"]["message"]
    await asyncio.to_thread(docker, "exec", box.id, "bash", "-c", "echo > /tmp/go")
    assert (await first)["verdict"] == "resolved"


@pytest.mark.docker
async def test_a_work_tree_whose_git_is_a_file_is_no_verdict(box: Box) -> None:
    made = await box.run(f"{REPOSITORY} && git worktree add -q /tmp/tree && test -f /tmp/tree/.git")
    assert made["returncode"] == 0, made
    found = await grade(box, "true", cwd="/tmp/tree")
    assert (found["verdict"], found["detail"]["kind"]) == ("infra_error", "StartingStateError"), found


def test_a_nested_repository_stays_where_something_in_it_is_held() -> None:
    held = {b"vendor/a", b"run_tests.sh", b"inner/"}
    found = [b"vendor/", b"run_tests.sh", b"inner/", b"vendo/", b"new", b"vendor"]
    assert superfluous(found, held) == [b"vendo/", b"new", b"vendor"]
