"""Replay: every real transcript is read; a stored trajectory runs again in a real sandbox."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from swe_rl import cli
from swe_rl.agent.replay import changed_lines, compare, stable
from swe_rl.agent.replay_steps import StoredStep, read_trajectory
from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.errors import DataError
from swe_rl.sandbox.provider import open_provider
from swe_rl.tasks.load import write_tasks
from swe_rl.types import ExecResult, Task
from tests.tasks.local_tasks import FIX, make_archive, make_task

COMMANDS = [
    "cat calc.py",
    "python3 -c 'print(object())' && date",
    "sed -i 's/a - b/a + b/' calc.py && git diff --stat",
    "ls nowhere",
    "seq 1 30000",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
]


def test_all_real_transcripts(cases: Path) -> None:
    files = sorted(cases.glob("trajectories/*.traj.json"))
    assert len(files) == 17
    commands = unrecorded = skipped = 0
    for file in files:
        stored = read_trajectory(file)
        assert stored.instance_id == file.name.removesuffix(".traj.json")
        assert stored.image == f"swebench/sweb.eval.x86_64.{stored.instance_id.replace('__', '_1776_')}:latest"
        assert stored.cwd == "/testbed" and stored.env["PAGER"] == "cat" and stored.patch.startswith("diff --git")
        assert "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in stored.steps[-1].command
        commands += len(stored.steps)
        unrecorded += sum(step.returncode is None for step in stored.steps)
        skipped += stored.skipped
    # 460 observations with an exit code; the last command of each transcript has none; 11 answers had no one command
    assert (commands - unrecorded, unrecorded, skipped) == (460, 17, 11)


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Path]:
    """(traj.json in our form, tasks file) of commands that were really run."""
    archive, base = make_archive(tmp_path / "made")
    task = make_task(archive, base, "good")
    write_tasks(tmp_path / "tasks.jsonl", [task])
    steps = asyncio.run(_record(task))
    document = {"messages": [], "steps": steps, "instance_id": "good", "info": {"submission": FIX}}
    path = tmp_path / "traj.json"
    path.write_text(json.dumps(document))
    return path, tmp_path / "tasks.jsonl"


async def _record(task: Task) -> list[dict[str, Any]]:
    provider = await open_provider(Config(sandbox="process"))
    try:
        sandbox = await provider.open(task, deadline=Deadline(60), purpose="agent")
        steps = []
        for number, command in enumerate(COMMANDS):
            result = await sandbox.exec(command, timeout=30)
            output = result.output
            if len(output) > 100_000:
                output = f"{output[:50_000]}\n[{len(output) - 100_000} characters left out]\n{output[-50_000:]}"
            steps.append({"step": number, "action": command, "returncode": result.returncode, "output": output})
        await sandbox.close()
        return [*steps, {"step": 9, "format_error": 2}]
    finally:
        await provider.aclose()


def replay(path: Path, tasks: Path, *flags: str) -> int:
    return cli.main(["replay", str(path), "--tasks", str(tasks), "--sandbox", "process", *flags])


def test_the_same_commands_give_the_same(recorded: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(*recorded, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["difference"], found["patch_same"], found["same"]) == (6, None, True, True)


def test_the_first_difference_is_reported(recorded: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(recorded[0].read_text())
    document["steps"][2]["output"] = document["steps"][2]["output"].replace("calc.py", "other.py")
    document["steps"][3]["returncode"] = 0
    recorded[0].write_text(json.dumps(document))
    assert replay(*recorded) == 1
    out = capsys.readouterr().out
    assert "first difference at step 2" in out and "other.py" in out and "3 of 6 commands run" in out


def test_another_patch_is_a_difference(recorded: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(recorded[0].read_text())
    document["info"]["submission"] = FIX.replace("a + b", "b + a")
    recorded[0].write_text(json.dumps(document))
    assert replay(*recorded) == 1
    assert "the patch differs" in capsys.readouterr().out


def test_list_runs_nothing(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", str(cases / "trajectories" / "sympy__sympy-13480.traj.json"), "--list"]) == 0
    assert "bin/test sympy/functions/elementary/tests/test_hyperbolic.py" in capsys.readouterr().out


def test_what_may_differ() -> None:
    one = "<object at 0x7f00aa11bb22> 3 passed in 0.12s Nov 30 13:51 /tmp/abc/x 2026-11-30 13:51:10"
    two = "<object at 0x7f99cc11bb22> 3 passed in 4.5s Dec  1 09:01 /tmp/def/y 2026-12-01 09:01:59"
    assert stable(one) == stable(two) and stable("3 passed") != stable("4 passed")
    step = StoredStep(0, "c", 0, one)
    assert compare(step, ExecResult(0, two)) is None and compare(step, ExecResult(0, two), exact=True) is not None
    difference = compare(step, ExecResult(1, one))
    assert difference is not None and difference.what == "exit code 1, stored 0"
    cut = StoredStep(0, "c", 0, "head", "tail")
    assert compare(cut, ExecResult(0, "head...anything...tail")) is None
    assert compare(cut, ExecResult(0, "head...anything...tale")) is not None


def test_patches_that_say_the_same() -> None:
    other = FIX.replace("@@ -1,5 +1,5 @@", "@@ -1,2 +1,2 @@ def").replace(
        "diff --git a/calc.py b/calc.py\n", "index 1..2\n"
    )
    assert changed_lines(FIX) == changed_lines(other) != changed_lines(FIX.replace("a + b", "b + a"))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"messages": []}', b'{"messages": [1, {"role": "assistant"}]}', b"\xff"]
)
def test_what_is_no_trajectory(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "traj.json").write_bytes(content)
    with pytest.raises(DataError, match=r"traj\.json"):
        read_trajectory(tmp_path)
    with pytest.raises(DataError, match="no such trajectory"):
        read_trajectory(tmp_path / "nope")
