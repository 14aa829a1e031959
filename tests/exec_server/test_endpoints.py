"""The endpoints against a real engine: what existing clients send, limits, files, status, refusals."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from swe_rl.sandbox.container.errors import EngineRefused
from swe_rl.sandbox.container.limits import Limits
from swe_rl.sandbox.exec_server.answers import open_database
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.exec_server.requests import CreateBody
from swe_rl.sandbox.exec_server.settings import ExecSettings
from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.conftest import Box, new_box
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker
REPOSITORY = "git init -q . && printf 'one\\ntwo\\n' > file && git add -A && git commit -qm base"
PATCH = "--- a/file\n+++ b/file\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"


async def test_the_life_of_a_container(server: ExecServer) -> None:
    """The six endpoints with nothing but the fields that existing clients send."""
    made = await server.ok("/container/create", image=TEST_IMAGE, cwd="/testbed", timeout=60, name="client-box")
    identity = {"container_id": made["container_id"]}
    await server.ok("/container/exec", **identity, command=REPOSITORY, cwd="/testbed", timeout=60, env={})
    await server.ok(
        "/container/exec", **identity, command="echo four >> file; echo x > new", cwd="/testbed", timeout=60
    )
    patch = (await server.ok("/container/diff", **identity, cwd="/testbed"))["patch"]
    assert "+four" in patch and "b/new" in patch
    fresh = await new_box(server)
    await fresh.run(REPOSITORY)
    body = {"cwd": "/testbed", "patch": patch, "eval_script": "grep -q four file && test -e new", "timeout": 60}
    grade = await server.ok("/container/evaluate", container_id=fresh.id, **body)
    assert (grade["resolved"], grade["returncode"], grade["verdict"]) == (True, 0, "resolved")
    for name in ("client-box", fresh.id):
        assert (await server.ok("/container/destroy", container_id=name))["destroyed"]
    assert (await server.ok("/container/destroy", container_id="client-box"))["destroyed"] is False
    status, answer = await server.post("/container/exec", **identity, command="true")
    assert (status, answer["error"]["kind"]) == (404, "container_gone")


@pytest.mark.parametrize(
    ("patch", "script", "verdict"),
    [
        (PATCH, "grep -q three file", "resolved"),
        (PATCH, "grep -q nothing file", "unresolved"),
        (PATCH.replace("two", "zwei"), "true", "patch_rejected"),
        ("", "true", "no_patch"),
        (PATCH, "sleep 60", "test_timeout"),
    ],
)
async def test_verdicts(box: Box, patch: str, script: str, verdict: str) -> None:
    await box.run(REPOSITORY)
    body = {"container_id": box.id, "cwd": "/testbed", "patch": patch, "eval_script": script, "timeout": 6}
    grade = await box.server.ok("/container/evaluate", **body)
    assert (grade["verdict"], grade["resolved"]) == (verdict, verdict == "resolved")


async def managed(server: ExecServer) -> list[str]:
    return (await asyncio.to_thread(server.engine.docker, "ps", "-aq", "--filter", "label=swe-rl.managed")).split()


async def repository_image(server: ExecServer) -> str:
    """An image that holds the repository."""
    box, name = await new_box(server), "swe-rl/with-repository:1"
    await box.run(REPOSITORY)
    await asyncio.to_thread(server.engine.docker, "commit", box.id, name)
    await server.ok("/container/destroy", container_id=box.id)
    return name


async def test_grading_in_a_container_of_its_own(own_server: Callable[..., ExecServer]) -> None:
    server = own_server()
    body = {"image": await repository_image(server), "patch": PATCH, "timeout": 60}
    for script, verdict in (("grep -q three file", "resolved"), ("grep -q nothing file", "unresolved")):
        grade = await server.ok("/container/evaluate", **body, eval_script=script)
        assert grade["verdict"] == verdict, grade
    assert await managed(server) == []


async def test_an_evaluation_that_a_kill_cut_leaves_no_container(own_server: Callable[..., ExecServer]) -> None:
    server, other = own_server(), own_server("--watch-interval", "0.2")
    body = {"image": await repository_image(server), "patch": PATCH, "eval_script": "sleep 60", "timeout": 100}
    begun = [asyncio.create_task(one.post("/container/evaluate", **body)) for one in (server, other)]
    while len(await managed(server)) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    server.kill()
    server.start()
    for _ in range(300):
        if len(await managed(server)) == 1:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    assert len(await managed(server)) == 1 and not begun[1].done(), "another server's evaluation goes on"
    other.kill()
    await asyncio.gather(*begun, return_exceptions=True)


async def test_a_container_that_would_not_go_costs_no_verdict(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = str(tmp_path / "db")
    node = Node(ExecSettings(database, docker_host=engine.host, limits=Limits(256, 1.0, 96)), open_database(database))
    await node.start()
    try:
        remove = node.engine.remove

        async def busy(container_id: str) -> bool:
            monkeypatch.setattr(node.engine, "remove", remove)
            raise EngineRefused(500, "device or resource busy")

        async with node.for_evaluation(CreateBody(image=TEST_IMAGE)) as container:
            await node._lost_evaluations()
            assert (await container.exec("echo it goes on", timeout=30)).output == "it goes on\n"
            monkeypatch.setattr(node.engine, "remove", busy)
        assert len(await node.listed()) == 1
        await node._lost_evaluations()
        assert await node.listed() == []
    finally:
        await node.stop()


async def test_five_megabyte_patch(box: Box) -> None:
    await box.run(REPOSITORY)
    lines = "".join(f"+{i:060d}\n" for i in range(80_000))
    patch = f"--- /dev/null\n+++ b/big.txt\n@@ -0,0 +1,80000 @@\n{lines}"
    assert len(patch) > 4_900_000
    body = {"container_id": box.id, "cwd": "/testbed", "timeout": 120}
    script = "test $(wc -l < big.txt) = 80000"
    grade = await box.server.ok("/container/evaluate", **body, patch=patch, eval_script=script)
    assert grade["verdict"] == "resolved"


async def test_a_login_shell_each_time_afresh(box: Box) -> None:
    await box.run("export GONE=1; cd /; echo 'export ADDED=yes; twice() { echo $1$1; }' >> ~/.bash_profile")
    answer = await box.run('echo $PWD ${GONE-unset} $ADDED; twice a; echo "$EXTRA"', env={"EXTRA": "it's 'quoted'\n"})
    assert answer["output"] == "/testbed unset yes\naa\nit's 'quoted'\n\n"


async def test_a_profile_that_activates_an_environment(server: ExecServer) -> None:
    box = await new_box(server, env={"BASH_ENV": "/root/noninteractive"})
    await box.run(
        "echo 'PATH=/opt/env/bin:$PATH; shopt -s globstar' > ~/.bash_profile; echo 'export FROM_ENV_FILE=1' > $BASH_ENV"
    )
    answer = await box.run("echo ${PATH%%:*} $BASH_ENV $FROM_ENV_FILE; shopt -q globstar && echo glob")
    assert (answer["returncode"], answer["output"]) == (0, "/opt/env/bin /root/noninteractive 1\nglob\n")


async def test_missing_folder_and_missing_command(box: Box) -> None:
    answer = await box.run("true", cwd="/nowhere")
    assert answer["returncode"] != 0 and "/nowhere" in answer["output"]
    answer = await box.run("no-such-program")
    assert answer["returncode"] == 127 and answer["output"].startswith("bash: line 1: no-such-program")


async def test_containers_are_hardened(box: Box) -> None:
    script = "grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /sys/class/net; cat /proc/1/oom_score_adj"
    output = (await box.run(script))["output"].split()
    assert output[:5] == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1", "lo"]
    config = json.loads(box.server.engine.docker("inspect", box.id))[0]["HostConfig"]
    assert (config["PidsLimit"], config["Memory"], config["NanoCpus"]) == (96, 256 << 20, 10**9)
    assert config["MemorySwap"] == config["Memory"] and config["NetworkMode"] == "none"


async def test_memory_limit_ends_the_command_not_the_container(box: Box) -> None:
    answer = await box.run("python3 -c 'x = bytearray(600 << 20)'")
    assert answer["returncode"] == 137
    assert (await box.run("echo on"))["output"] == "on\n"


@pytest.mark.parametrize("asked", [{"pids": 97}, {"memory_mb": -1}, {"cpus": "2"}, {"network": True}, {"unknown": 1}])
async def test_limits_can_only_be_lowered(server: ExecServer, asked: dict[str, Any]) -> None:
    status, answer = await server.post("/container/create", image=TEST_IMAGE, limits=asked)
    assert (status, answer["error"]["kind"]) == (400, "bad_request")
    assert next(iter(asked)) in answer["error"]["message"]


async def test_lower_limits_are_kept(server: ExecServer) -> None:
    box = await new_box(server, limits={"pids": 40, "memory_mb": 64})
    config = json.loads(server.engine.docker("inspect", box.id))[0]["HostConfig"]
    assert (config["PidsLimit"], config["Memory"]) == (40, 64 << 20)


@pytest.mark.parametrize("size", [0, 1000, 5_000_000, 20_000_000])
async def test_files_in_and_out(box: Box, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    query = {"container_id": box.id, "path": "new folder/it's a file", "mode": "755"}
    async with aiohttp.ClientSession() as session:
        async with session.post(box.server.url + "/container/upload", params=query, data=data) as answer:
            assert answer.status == 200, await answer.text()
        query["max_bytes"] = "30000000"
        async with session.post(box.server.url + "/container/download", params=query) as answer:
            assert await answer.read() == data
        query["max_bytes"] = "999"
        async with session.post(box.server.url + "/container/download", params=query) as answer:
            assert answer.status == (413 if size > 999 else 200)
        query["path"] = "/not/there"
        async with session.get(box.server.url + "/container/download", params=query) as answer:
            assert (answer.status, (await answer.json())["error"]["kind"]) == (404, "not_found")
    assert (await box.run("stat -c '%a %s' new*/it*"))["output"] == f"755 {size}\n"


async def test_tar_streams(box: Box) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("inner/file")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    async with aiohttp.ClientSession(headers={"Content-Type": "application/x-tar"}) as session:
        query = {"container_id": box.id, "path": "/made/here"}
        url = box.server.url + "/container/"
        async with session.post(url + "upload", params=query, data=packed.getvalue()) as answer:
            assert answer.status == 200, await answer.text()
        async with session.get(url + "download", params={**query, "format": "tar"}) as answer:
            packed = io.BytesIO(await answer.read())
    with tarfile.open(fileobj=packed) as back:
        assert back.extractfile("here/inner/file").read() == b"hello"  # type: ignore[union-attr]


async def test_a_patch_that_is_no_utf8(box: Box) -> None:
    await box.run(REPOSITORY)
    await box.run("printf 'caf\\xe9\\n' > latin")
    answer = await box.server.ok("/container/diff", container_id=box.id, cwd="/testbed")
    assert b"+caf\xe9\n" in base64.b64decode(answer["patch_base64"])


async def test_image_without_bash(server: ExecServer, tmp_path: Any) -> None:
    empty = tmp_path / "empty.tar"
    with tarfile.open(empty, "w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    server.engine.docker("import", str(empty), "swe-rl/empty:1")
    status, answer = await server.post("/container/create", image="swe-rl/empty:1")
    assert (status, answer["error"]["kind"]) == (422, "image_unusable")
    assert "swe-rl/empty" not in server.engine.docker("ps", "-a")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/container/exec", {"container_id": "x", "command": "true", "timeout": -1}, "timeout"),
        ("/container/exec", {"container_id": "x", "command": "a\0b"}, "command"),
        ("/container/exec", {"container_id": "x", "command": "true", "env": {"A B": "1"}}, "env"),
        ("/container/exec", {"container_id": "x", "command": "true", "cwd": "relative"}, "cwd"),
        ("/container/exec", {"command": "true"}, "container_id"),
        ("/container/create", {}, "image"),
        ("/container/create", {"image": "x y"}, "image"),
        ("/container/create", {"image": "x", "name": "../up"}, "name"),
        ("/container/evaluate", {"eval_script": "true"}, "container_id or image"),
        ("/container/evaluate", {"image": "x", "patch": "p", "settings": {"nonsense": 1}}, "nonsense"),
    ],
)
async def test_bad_requests_name_the_field(server: ExecServer, path: str, body: dict[str, Any], named: str) -> None:
    status, answer = await server.post(path, **body)
    assert (status, answer["error"]["kind"]) == (400, "bad_request"), answer
    assert named in answer["error"]["message"]


@pytest.mark.parametrize("env", [{"A": "x" * 140_000}, {"A": "x" * 70_000, "B": "x" * 70_000}])
async def test_variables_that_no_shell_can_be_given(box: Box, env: dict[str, str]) -> None:
    body = {"container_id": box.id, "command": "true", "env": env}
    status, answer = await box.server.post("/container/exec", **body)
    assert (status, answer["error"]["kind"]) == (400, "bad_request") and "env" in answer["error"]["message"]
    answer = await box.run("echo ${#A}", env={"A": "x" * 120_000})
    assert answer["output"] == "120000\n"


async def test_status_for_pools_and_people(box: Box) -> None:
    labelled = await new_box(box.server, labels={"swe-rl.lease": "<b>7</b>"}, name="labelled")
    async with aiohttp.ClientSession() as session:
        async with session.get(box.server.url + "/status") as answer:
            status = await answer.json()
        async with session.get(box.server.url + "/status", headers={"Accept": "text/html"}) as answer:
            page = await answer.text()
        async with session.get(box.server.url + "/metrics") as answer:
            metrics = await answer.text()
        async with session.get(box.server.url + "/images") as answer:
            images = (await answer.json())["details"]
        async with session.get(box.server.url + "/healthz") as answer:
            assert (await answer.json())["ok"] is True
    found = {row["container_id"]: row for row in status["containers"]}
    assert found[labelled.id]["labels"]["swe-rl.lease"] == "<b>7</b>" and found[labelled.id]["name"] == "labelled"
    assert "&lt;b&gt;7" in page and "<b>7" not in page and box.id[:12] in page
    assert 'swe_exec_request_seconds_count{route="/container/create"' in metrics
    image = next(row for row in images if TEST_IMAGE in row["tags"])
    assert image["containers"] >= 2 and image["pinned"] and image["id"].startswith("sha256:")


async def test_token(own_server: Callable[..., ExecServer]) -> None:
    server = own_server(token="s3cret-token")
    assert (await server.post("/container/exec", container_id="x", command="true"))[0] == 404
    for header in ("", "Bearer wrong", "Bearer s3cret-toke", "Basic s3cret-token"):
        async with aiohttp.ClientSession(headers={"Authorization": header} if header else {}) as session:
            async with session.get(server.url + "/status") as answer:
                assert answer.status == 401
            async with session.get(server.url + "/healthz") as answer:
                assert answer.status == 200
    assert "s3cret" not in server.log.read_text()
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    assert {"method": "GET", "path": "/status", "status": 401}.items() <= lines[1].items()
