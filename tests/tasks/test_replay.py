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


def second_form(steps: list[dict[str, Any]], *, actions: bool, ids: bool = True) -> list[dict[str, Any]]:
    """Messages of mini-swe-agent 2.x: two calls an answer, their results in another order, ids used again in each answer."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "task"}]
    for start in range(0, len(steps), 2):
        pair = [(f"call_{n}", step) for n, step in enumerate(steps[start : start + 2])]
        answer: dict[str, Any] = {"role": "assistant", "content": None, "extra": {"cost": 0}}
        if actions:
            answer["extra"]["actions"] = [{"command": s["action"], "tool_call_id": name} for name, s in pair]
        answer["tool_calls"] = [
            {"id": name, "function": {"name": "bash", "arguments": json.dumps({"command": step["action"]})}}
            for name, step in pair
        ]
        results = [
            {
                "role": "tool",
                **({"tool_call_id": name} if ids else {}),
                "content": "<returncode>77</returncode>\n<output>\ncut for the model</output>",
                "extra": {
                    "raw_output": s["output"],
                    "returncode": s["returncode"],
                    "exception_info": s.get("error", ""),
                },
            }
            for name, s in pair
        ]
        messages += [answer, *(results[::-1] if ids else results)]
    return [*messages, {"role": "exit", "content": FIX}]


@pytest.mark.parametrize(("actions", "ids"), [(True, True), (False, True), (False, False)])
def test_calls_of_tools_are_commands(
    recorded: tuple[Path, Path], capsys: pytest.CaptureFixture[str], actions: bool, ids: bool
) -> None:
    document = json.loads(recorded[0].read_text())
    steps = [step for step in document.pop("steps")[:6] if step["step"] != 4]
    slow = {"action": "true", "output": "", "returncode": -1, "error": "timed out"}
    never = {"action": "rm calc.py", "output": "", "returncode": -1, "error": "action was not executed"}
    document["messages"] = second_form([*steps[:4], slow, *steps[4:], never], actions=actions, ids=ids)
    recorded[0].write_text(json.dumps(document))
    stored = read_trajectory(recorded[0])
    assert [step.command for step in stored.steps] == [*COMMANDS[:4], "true", COMMANDS[5]] and stored.skipped == 0
    assert [step.returncode for step in stored.steps][3:] == [2, None, 0]
    assert replay(*recorded, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["unrecorded"], found["patch_same"], found["same"]) == (6, 1, True, True)


def test_answers_of_the_responses_api_and_broken_calls(tmp_path: Path) -> None:
    call = {"function": {"arguments": "{broken"}}
    messages = [
        {"object": "response", "output": [], "extra": {"actions": [{"command": "ls", "tool_call_id": "c"}]}},
        {"type": "function_call_output", "call_id": "c", "output": "<returncode>1</returncode>\n<output>\nx</output>"},
        {"role": "assistant", "content": "", "tool_calls": [call, None, {"function": {"arguments": "[]"}}]},
        {"role": "user", "content": [{"type": "text", "text": "call one tool"}], "extra": []},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {"command": "pwd"}}}]},
        {"role": "tool", "content": [{"type": "text", "text": "<returncode>0</returncode>\n<output>\n/</output>"}]},
    ]
    (tmp_path / "traj.json").write_text(json.dumps({"messages": messages}))
    stored = read_trajectory(tmp_path)
    assert stored.steps == [StoredStep(0, "ls", 1, "x"), StoredStep(2, "pwd", 0, "/")] and stored.skipped == 1


def test_odd_values_are_no_traceback(tmp_path: Path) -> None:
    step = {"step": None, "action": "ls"}
    document: dict[str, Any] = {"messages": [], "steps": [step, {**step, "step": "x"}]}
    (tmp_path / "traj.json").write_text(json.dumps(document))
    assert [found.number for found in read_trajectory(tmp_path).steps] == [0, 1]
    document["info"] = {"config": {"environment": {"env": ["A=1"]}}}
    (tmp_path / "traj.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"traj\.json: info\.config\.environment\.env is list"):
        read_trajectory(tmp_path)


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
