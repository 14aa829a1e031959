"""Certify, regrade and replay through pool server and exec server before a real Docker Engine, as separate processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_rl.sandbox.container.local_image import DEFAULT_TAG
from swe_rl.tasks.forms import task_from_row
from swe_rl.tasks.load import load_tasks, write_tasks
from swe_rl.types import Task
from tests.docker_engine import TEST_IMAGE, Engine
from tests.grading.image_shapes import r2e, smith
from tests.grading.lab import EVAL_SCRIPT, FIXED, build_lab, write
from tests.pool.plane import exec_server, pool_server

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
SYNTH_TESTS = (
    "\n\ndef test_a():\n    assert calc.total([1, 2]) == 3\n\n\ndef test_b():\n    assert calc.halve(5) == 2\n"
)
TOKEN = "token-of-this-test"


def image_of(engine: Engine, folder: Path, name: str) -> str:
    """An image with `folder` at /testbed; returns its id."""
    container = engine.docker("create", TEST_IMAGE).strip()
    engine.docker("cp", f"{folder}/.", f"{container}:/testbed")
    engine.docker("commit", "--change", "WORKDIR /testbed", container, name)
    engine.docker("rm", container)
    return engine.docker("image", "inspect", "--format", "{{.Id}}", name).strip()


@pytest.fixture(scope="module")
def urls(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Of an exec server and of a pool server before it, each a process of its own."""
    folder = tmp_path_factory.mktemp("plane")
    node = exec_server(folder / "node", engine.host, token=TOKEN)
    asyncio.run(node.start())
    pool = pool_server(folder / "pool", [node.url], token=TOKEN, flags=("--close-at-exit",))
    asyncio.run(pool.start())
    yield node.url, pool.url
    asyncio.run(pool.stop())
    asyncio.run(node.stop())


@pytest.fixture(scope="module")
def plane(urls: tuple[str, str]) -> list[str]:
    """The flags that lead to the pool."""
    return ["--sandbox", "pool", "--swe-env-server-url", urls[1], "--swe-eval-timeout", "120"]


@pytest.fixture(scope="module")
def tasks(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Task, str]]:
    """(task, image id) by name: an own image with an eval script, images in the shape of SWE-smith and R2E-Gym, a wrong fix."""
    folder = tmp_path_factory.mktemp("images")
    found = {}
    for name, shape in (("smith", smith), ("r2e", r2e)):
        row = {**shape(folder / name), "image_name": f"swesmith/{name}:1", "docker_image": f"local/{name}:1"}
        row |= {"test_cmd": "python3 -m pytest -rA tests"} if name == "smith" else {}
        task = task_from_row(row)
        found[name] = (task, image_of(engine, folder / name, task.image))
    lab = build_lab(folder)
    plain = lab.script_task
    plain.archive, plain.image, plain.eval_script = "", "local/plain:1", EVAL_SCRIPT.replace("python ", "python3 ")
    found["plain"] = (plain, image_of(engine, lab.repo, plain.image))
    wrong = Task(**{**plain.__dict__, "instance_id": "wrong", "patch": plain.patch.replace("+= number", "*= number")})
    found["wrong"] = (wrong, found["plain"][1])
    return found


def swe_rl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "swe_rl", *arguments]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SWE_SERVER_TOKEN": TOKEN}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)


def test_certify_goes_on_after_sigkill(plane: list[str], tasks: dict[str, tuple[Task, str]], tmp_path: Path) -> None:
    write_tasks(tmp_path / "t.jsonl", [task for task, _ in tasks.values()])
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    command = swe_rl(
        "data", "certify", str(tmp_path / "t.jsonl"), "-o", str(out), "--repeat", "2", "--concurrency", "1", *plane
    )
    first = subprocess.Popen(command, env={**os.environ, "SWE_SERVER_TOKEN": TOKEN}, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while not (journal.exists() and journal.read_bytes().count(b"\n")) and first.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        first.kill()
        first.wait(timeout=30)
    before = journal.read_bytes()
    assert 1 <= before.count(b"\n") < 4 and not out.exists()
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert journal.read_bytes().startswith(before) and journal.read_bytes().count(b"\n") == 4
    found: dict[str, Any] = {task.instance_id: task.metadata["certification"] for task in load_tasks(out).tasks}
    for name, (task, image_id) in tasks.items():
        outcome = found[task.instance_id]
        assert outcome["status"] == ("broken" if name == "wrong" else "certified"), outcome
        assert outcome["gold"] == ["unresolved" if name == "wrong" else "resolved"] * 2
        assert outcome["empty"] == ["unresolved"] and outcome["image_digest"] == image_id
    assert len(load_tasks(out, only_certified=True).tasks) == 3
    page = (tmp_path / "out.html").read_text()
    assert page.count("<tr>") == 5 and "sandbox pool" in page and tasks["smith"][1] in page


def test_synthesis_builds_its_image_and_certifies(engine: Engine, tmp_path: Path) -> None:
    """An engine without the image for tasks that name none gets it, and the new tasks are graded in it."""
    write(tmp_path / "calc-1.0", {"calc.py": FIXED, "tests/test_calc.py": "import calc\n" + SYNTH_TESTS})
    subprocess.run(["docker", "-H", engine.host, "image", "rm", "-f", DEFAULT_TAG], capture_output=True, check=False)
    out = tmp_path / "out"
    command = swe_rl("data", "synth", "--from", str(tmp_path / "calc-1.0"), "--count", "1", "--out", str(out))
    environment = {**os.environ, "DOCKER_HOST": engine.host}
    command += ["--repeat", "1", "--sandbox", "docker"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert engine.docker("image", "inspect", "--format", "{{.Id}}", DEFAULT_TAG).startswith("sha256:")
    (task,) = load_tasks(out / "tasks.certified.jsonl").tasks
    assert task.certified and task.metadata["certification"]["gold"] == ["resolved"]


def test_regrade(plane: list[str], tasks: dict[str, tuple[Task, str]], tmp_path: Path) -> None:
    write_tasks(tmp_path / "t.jsonl", [task for task, _ in tasks.values()])
    stored = {
        "plain": ("gold", "resolved"),
        "smith": ("gold", "resolved"),
        "wrong": ("gold", "unresolved"),
        "r2e": ("", "no_patch"),
    }
    for name, (patch, verdict) in stored.items():
        task = tasks[name][0]
        folder = tmp_path / "run" / "attempts" / f"{task.instance_id}__g0__i0__1"
        folder.mkdir(parents=True)
        (folder / "patch.diff").write_text(task.patch if patch else "")
        (folder / "meta.json").write_text(json.dumps({"instance_id": task.instance_id, "verdict": verdict}))
    done = run(swe_rl("regrade", str(tmp_path / "run"), "--tasks", str(tmp_path / "t.jsonl"), "--json", *plane))
    assert done.returncode == 0, done.stderr + done.stdout
    assert {"attempts": 4, "same": 4}.items() <= json.loads(done.stdout).items()


def test_replay(plane: list[str], tasks: dict[str, tuple[Task, str]], tmp_path: Path) -> None:
    task = tasks["smith"][0]
    write_tasks(tmp_path / "t.jsonl", [task])
    fixed = next(line for line in FIXED.splitlines() if "+= number" in line) + "\n"
    steps = [
        {"step": 0, "action": "grep -n number calc.py | head -n 3", "returncode": 0, "output": "4:def total(numbers):\n"
         '5:    """Sum of the numbers."""\n7:    for number in numbers:\n'},
        {"step": 1, "action": "ls tests", "returncode": 0, "output": "test_shout.py\n"},
        {"step": 2, "action": "sed -i 's/-= number/+= number/' calc.py && grep += calc.py", "returncode": 0, "output": fixed},
    ]  # fmt: skip
    document = {"instance_id": task.instance_id, "messages": [], "steps": steps, "info": {"submission": task.patch}}
    (tmp_path / "traj.json").write_text(json.dumps(document))
    command = swe_rl("replay", str(tmp_path / "traj.json"), "--tasks", str(tmp_path / "t.jsonl"), "--json", *plane)
    done = run(command)
    found = json.loads(done.stdout)
    assert (done.returncode, found["run"], found["difference"], found["patch_same"]) == (0, 3, None, True), done.stdout
    steps[1]["output"] = "test_calc.py\ntest_shout.py\n"  # what the image shows before the bug's tests are taken away
    (tmp_path / "traj.json").write_text(json.dumps(document))
    done = run(command)
    assert done.returncode == 1 and json.loads(done.stdout)["difference"]["step"] == 1


@pytest.mark.parametrize(("patch", "verdict"), [("gold", "resolved"), ("wrong", "unresolved")])
def test_the_exec_servers_own_grading_makes_the_starting_state(
    patch: str, verdict: str, urls: tuple[str, str], tasks: dict[str, tuple[Task, str]]
) -> None:
    task = tasks["smith"][0]
    text = task.patch if patch == "gold" else task.patch.replace("+= number", "*= number")
    body = {"image": task.image, "cwd": task.workdir, "timeout": 120, "patch": text, "eval_script": task.eval_script}
    body["task"] = {"fail_to_pass": task.fail_to_pass, "pass_to_pass": task.pass_to_pass, "metadata": task.metadata}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{urls[0]}/container/evaluate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=150) as answer:
        assert json.load(answer)["verdict"] == verdict
