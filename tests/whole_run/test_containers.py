"""A whole run whose every command and every grading happens in containers of a real Docker Engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docker_engine import Engine
from tests.whole_run.conftest import Lab
from tests.whole_run.test_quickstart import PATIENT, shell
from tests.whole_run.test_train import wait_for_step, wait_until_gone

pytestmark = [pytest.mark.docker, pytest.mark.ray, pytest.mark.timeout(1800)]
OURS = ("ps", "-aq", "--filter", "label=swe-rl.managed")


@contextlib.contextmanager
def containers_made(engine: Engine, folder: Path) -> Iterator[dict[str, set[str]]]:
    """Ids of leased containers by what the engine itself says happened to them. Filled when the context ends."""
    seen: dict[str, set[str]] = defaultdict(set)
    form = "{{.Action}} {{.ID}}"
    command = ["docker", "-H", engine.host, "events", "--filter", "label=swe-rl.lease", "--format", form]
    heard = folder / "events"
    with heard.open("wb") as out, subprocess.Popen(command, stdout=out) as listener:
        try:
            yield seen
            time.sleep(1)
        finally:
            listener.terminate()
    for line in heard.read_text().splitlines():
        action, _, container = line.partition(" ")
        seen[action].add(container)


def check_attempts(run: Path, engine: Engine, made: dict[str, set[str]]) -> int:
    """Every attempt had a container of its own, so had every patch that was tested, and all of them are gone.

    Returns how many patches were tested. Equal patches of one task share a grading.
    """
    assert engine.docker(*OURS) == ""
    metas = {path.parent: json.loads(path.read_text()) for path in (run / "attempts").rglob("meta.json")}
    assert metas and not [meta for meta in metas.values() if meta["verdict"] == "infra_error"]
    tested = {
        (meta["instance_id"], patch)
        for folder, meta in metas.items()
        if meta["verdict"] in ("resolved", "unresolved", "test_timeout")
        and (patch := (folder / "patch.diff").read_bytes())
    }
    assert len(made["create"]) >= len(metas) + len(tested)
    # What the engine refused to make (with a disk quota that it does not have) it reports as destroyed only.
    assert made["start"] == made["create"] <= made["destroy"]
    return len(tested)


def within(seconds: float, condition: Callable[[], object]) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "the condition did not come true"
        time.sleep(0.2)


def test_a_run_trains_in_containers_and_leaves_none(lab: Lab, engine: Engine, tmp_path: Path) -> None:
    lab = Lab(lab.folder, {**lab.env, "DOCKER_HOST": engine.host})
    with containers_made(engine, tmp_path) as made:
        done = lab.run("--export-root", str(tmp_path / "out"), "--sandbox", "docker", *PATIENT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = (tmp_path / "out" / "latest").resolve()
    assert json.loads((run / "summary.json").read_text())["optimizer_steps"] == 3
    check_attempts(run, engine, made)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_a_run_that_ends_early_leaves_no_container(lab: Lab, engine: Engine, tmp_path: Path, how: str) -> None:
    env = {**lab.env, "DOCKER_HOST": engine.host, "TEST_RUN_FOLDER": str(tmp_path / "out")}
    flags = ("--export-root", str(tmp_path / "out"), "--sandbox", "docker", "--num-rollout", "50")
    process = subprocess.Popen(
        lab.command(*flags),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for_step(tmp_path / "out", 1, process)
    within(120, lambda: engine.docker(*OURS))  # attempts are under way
    if how == "interrupted":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    within(120, lambda: not engine.docker(*OURS))
    assert wait_until_gone(tmp_path / "out", 120) == []


@pytest.mark.slow
def test_the_quickstart_in_containers(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    with containers_made(engine, tmp_path) as made:
        shell("scripts/quickstart.sh", "--quick", *PATIENT, "--sandbox", "docker", out=tmp_path / "out")
    run = (tmp_path / "out" / "quickstart" / "latest").resolve()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["optimizer_steps"] >= 1 and summary["verdicts"].get("resolved", 0) > 0
    assert check_attempts(run, engine, made) > 0
