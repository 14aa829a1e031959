"""The whole plane against a real Docker Engine: provider, pool server, exec server, containers."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from swe_rl.config.grading import GradingSettings
from swe_rl.config.sandbox import SandboxSettings
from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError, SandboxUnavailable
from swe_rl.grading.grader import grade_patch
from swe_rl.grading.patch_extract import extract_patch
from swe_rl.sandbox.container.local_image import DEFAULT_TAG
from swe_rl.sandbox.local_plane import open_local_plane
from swe_rl.sandbox.pool import PoolProvider
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.provider import open_provider
from swe_rl.types import Task, Verdict
from tests.docker_engine import TEST_IMAGE, Engine
from tests.pool.conftest import until
from tests.pool.plane import ServerProcess, exec_server, pool_server

pytestmark = pytest.mark.docker
TOKEN = "token-of-this-test"


def repository(folder: Path) -> Task:
    """A task whose repository says "broken" until a patch makes it say "fixed"."""
    repo = folder / "repo"
    repo.mkdir(parents=True)
    (repo / "state.txt").write_text("broken\n")
    git = ["git", "-C", str(repo), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "base"]):
        subprocess.run([*git, *command], check=True, timeout=30)
    archive = folder / "repo.tar"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(repo, ".")
    archive.write_bytes(buffer.getvalue())
    return Task(
        instance_id="broken-1",
        problem_statement="say fixed",
        image=TEST_IMAGE,
        workdir="/testbed",
        archive=str(archive),
        eval_script="grep -q fixed state.txt\n",
        log_parser="exit_code",
    )


FIX = b"""diff --git a/state.txt b/state.txt
--- a/state.txt
+++ b/state.txt
@@ -1 +1 @@
-broken
+fixed
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return repository(tmp_path_factory.mktemp("task"))


@pytest.fixture
async def plane(engine: Engine, tmp_path: Path) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    """(exec server, pool server) as processes."""
    node = exec_server(tmp_path / "node", engine.host, token=TOKEN)
    await node.start()
    pool = pool_server(tmp_path / "pool", [node.url], token=TOKEN, flags=("--close-at-exit",))
    await pool.start()
    yield node, pool
    await pool.stop()
    await node.stop()
    assert engine.docker("ps", "-aq", "--filter", "label=swe-rl.pool") == ""


@pytest.mark.parametrize("go_direct", [True, False], ids=["direct", "through the pool"])
async def test_a_whole_attempt(plane, task: Task, go_direct: bool) -> None:
    _, pool = plane
    provider = PoolProvider(pool.url, token=TOKEN, go_direct=go_direct)
    box = await provider.open(task, deadline=Deadline(120), purpose="agent")
    result = await box.exec("pwd; git status --short; cat state.txt; id -u", timeout=20)
    assert (result.returncode, result.output) == (0, "/testbed\nbroken\n0\n")
    assert (await box.exec("sleep 30", timeout=0.5)).returncode == 124
    assert (await box.exec("cat; echo $A", timeout=20, env={"A": "x y"})).output == "x y\n"
    await box.upload("sub/dir/data", bytes(range(256)) * 8000)
    assert await box.download("/testbed/sub/dir/data", max_bytes=3_000_000) == bytes(range(256)) * 8000
    with pytest.raises(SandboxError):
        await box.download("sub/dir/data", max_bytes=100)
    with pytest.raises(SandboxError):
        await box.download("missing", max_bytes=100)
    flood = await box.exec("yes | head -c 5000000", timeout=30, output_limit=10_000)
    assert flood.truncated and len(flood.output) < 12_000
    await box.close()
    verdicts = [
        (await grade_patch(task, patch, provider, GradingSettings(verdict_cache=False), Deadline(120))).verdict
        for patch in (FIX, FIX.replace(b"+fixed", b"+mended"), b"")
    ]
    assert verdicts == [Verdict.RESOLVED, Verdict.UNRESOLVED, Verdict.NO_PATCH]
    await provider.aclose()


async def test_what_ends_by_its_deadline_still_has_its_patch_collected(plane, task: Task) -> None:
    """As an attempt does whose agent used up its time: the pool's own settings must leave room for that."""
    _, pool = plane
    provider = PoolProvider(pool.url, token=TOKEN, heartbeat_interval=0.3)
    deadline = Deadline(15.0)
    box = await provider.open(task, deadline=deadline, purpose="agent")
    command = "echo fixed > state.txt; sleep 60"
    assert (await box.exec(command, timeout=deadline.remaining())).timed_out and deadline.expired()
    await asyncio.sleep(3.0)  # the pool has looked for leases that are over meanwhile
    assert b"+fixed" in await extract_patch(task, box, timeout=30.0)
    await box.close()
    await provider.aclose()


@pytest.mark.parametrize("go_direct", [True, False], ids=["direct", "through the pool"])
async def test_a_profile_that_hangs_costs_no_answer(plane, task: Task, go_direct: bool) -> None:
    _, pool = plane
    provider = PoolProvider(pool.url, token=TOKEN, go_direct=go_direct)
    box = await provider.open(task, deadline=Deadline(200), purpose="agent")
    await box.exec("echo 'sleep 100' > ~/.bash_profile; touch -d 2099-01-01 ~/.bash_profile", timeout=20)
    result = await asyncio.wait_for(box.exec("true", timeout=5), 30)
    assert (result.returncode, result.timed_out) == (0, False)
    await provider.aclose()


async def test_evaluation_on_the_node(plane, task: Task) -> None:
    _, pool = plane
    provider = PoolProvider(pool.url, token=TOKEN)
    box = await provider.open(task, deadline=Deadline(120), purpose="grade")
    answer = await box.evaluate({"patch": FIX.decode(), "eval_script": task.eval_script}, timeout=60)
    assert answer["resolved"] is True and answer["verdict"] == "resolved"
    await provider.aclose()


async def test_killed_servers_and_containers(plane, engine: Engine, task: Task) -> None:
    node, pool = plane
    provider = PoolProvider(pool.url, token=TOKEN, heartbeat_interval=0.5)
    box = await provider.open(task, deadline=Deadline(300), purpose="agent")
    await box.exec("echo one >> /tmp/effects", timeout=20)
    pool.kill()
    await pool.start()
    node.kill()
    await node.start()
    await box.exec("echo two >> /tmp/effects", timeout=20)
    assert (await box.exec("cat /tmp/effects", timeout=20)).output == "one\ntwo\n"
    running = asyncio.create_task(box.exec("echo three >> /tmp/effects; sleep 60", timeout=100))
    await until(lambda: "three" in effects(engine), within=60)
    node.kill()
    await node.start()
    with pytest.raises(SandboxError):  # whether it ended is unknown, and it is not run again
        await asyncio.wait_for(running, 60)
    assert effects(engine).split() == ["one", "two", "three"]
    engine.docker("rm", "-f", *engine.docker("ps", "-aq", "--filter", "label=swe-rl.pool").split())
    with pytest.raises(SandboxError):
        await box.exec("true", timeout=20)
    await provider.aclose()


async def test_the_reaper_looks_in_both_directions(plane, engine: Engine, task: Task) -> None:
    """A container without lease goes, a lease without container ends, and what is not ours stays."""
    _, pool = plane
    provider = PoolProvider(pool.url, token=TOKEN, heartbeat_interval=0.5)
    box = await provider.open(task, deadline=Deadline(300), purpose="agent")
    kept = engine.docker("ps", "-aq", "--no-trunc", "--filter", "label=swe-rl.pool").strip()
    labels = json.loads(engine.docker("inspect", "--format", "{{json .Config.Labels}}", kept))
    made = {}
    for name, changed in {"orphan": {"swe-rl.lease": "none"}, "other pool's": {"swe-rl.pool": "x"}}.items():
        flags = [f"--label={label}={value}" for label, value in {**labels, **changed}.items()]
        made[name] = engine.docker("create", *flags, TEST_IMAGE, "sleep", "1").strip()
    await until(lambda: made["orphan"] not in engine.docker("ps", "-aq", "--no-trunc"), within=60)
    assert {kept, made["other pool's"]} <= set(engine.docker("ps", "-aq", "--no-trunc").split())
    engine.docker("rm", "-f", kept, made["other pool's"])
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        for _ in range(600):
            async with session.get(f"{pool.url}/status") as answer:
                status = await answer.json()
            if not status["leases"]:
                break
            await asyncio.sleep(0.1)
    assert (status["leases"], status["leases_lost"], status["orphans_destroyed"]) == ([], 1, 1)
    with pytest.raises(SandboxError):
        await box.exec("true", timeout=20)
    await provider.aclose()


def effects(engine: Engine) -> str:
    container = engine.docker("ps", "-aq", "--filter", "label=swe-rl.pool").split()[0]
    return engine.docker("exec", container, "cat", "/tmp/effects")


async def test_a_local_plane_brings_its_image_and_leaves_nothing(engine: Engine, task: Task, monkeypatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    provider = await open_local_plane(SandboxSettings(), "docker")
    assert (provider.name, provider.capacity) == ("docker", 15)
    task = Task(**{**vars(task), "image": ""})
    grade = await grade_patch(task, FIX, provider, GradingSettings(verdict_cache=False), Deadline(120))
    assert grade.verdict is Verdict.RESOLVED, grade
    await provider.open(task, deadline=Deadline(60), purpose="agent")
    await provider.aclose()
    assert engine.docker("ps", "-aq", "--filter", "label=swe-rl.managed") == ""


async def test_an_engine_that_does_not_answer_is_said(monkeypatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/docker.sock")
    with pytest.raises(SandboxUnavailable, match="/no/such"):
        await open_local_plane(SandboxSettings(), "docker")


async def test_an_engine_that_cannot_run_a_container_is_passed_over(
    engine: Engine, monkeypatch, caplog, tmp_path
) -> None:
    first = await open_provider_on(engine, monkeypatch)
    assert first.name == "docker", "an engine that works is what auto takes"
    await first.aclose()  # the image is there now
    engine.docker("tag", DEFAULT_TAG, "kept:1")
    empty = tmp_path / "empty.tar"
    with tarfile.open(empty, "w"):
        pass
    engine.docker("import", str(empty), DEFAULT_TAG)  # no shell in it: every container fails to start
    try:
        with pytest.raises(SandboxUnavailable, match="no container could be used"):
            await open_local_plane(SandboxSettings(), "docker")
        provider = await open_provider_on(engine, monkeypatch)
        assert provider.name != "docker"
        await provider.aclose()
        assert "no container could be used" in caplog.text
    finally:
        engine.docker("tag", "kept:1", DEFAULT_TAG)
    assert engine.docker("ps", "-aq", "--filter", "label=swe-rl.managed") == ""


async def open_provider_on(engine: Engine, monkeypatch) -> SandboxProvider:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setenv("CONTAINER_HOST", "unix:///no/such/podman.sock")
    return await open_provider(SandboxSettings(sandbox="auto"))


@pytest.mark.parametrize("victim", ["driver", "driver and plane"])
async def test_a_killed_run_leaves_no_container(
    engine: Engine, task: Task, victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    driver = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DRIVER, str(vars(task))),
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert driver.stdout is not None
    plane_pid = int(await driver.stdout.readline())
    labelled = ("ps", "-aq", "--filter", "label=swe-rl.pool")
    assert engine.docker(*labelled)
    if victim == "driver and plane":
        os.kill(plane_pid, 9)
    driver.kill()
    await driver.wait()
    if victim == "driver and plane":  # nobody is left to tidy up: the next run does
        assert engine.docker(*labelled)
        await (await open_local_plane(SandboxSettings(), "docker")).aclose()
    await until(lambda: engine.docker(*labelled) == "", within=60)
    await until(lambda: not psutil.pid_exists(plane_pid), within=60)
    await (await open_local_plane(SandboxSettings(), "docker")).aclose()
    assert list(tmp_path.glob("*")) == [], "the folder of the killed run is gone too"


DRIVER = """
import ast, asyncio, sys
import psutil
from swe_rl.config.sandbox import SandboxSettings
from swe_rl.deadline import Deadline
from swe_rl.sandbox.local_plane import open_local_plane
from swe_rl.types import Task

async def main():
    provider = await open_local_plane(SandboxSettings(), "docker")
    await provider.open(Task(**ast.literal_eval(sys.argv[1])), deadline=Deadline(300), purpose="agent")
    print(psutil.Process().children()[0].pid, flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""
