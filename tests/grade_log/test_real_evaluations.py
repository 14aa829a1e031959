"""The 47 real evaluations: the report from the log alone equals the official one, to the order of the lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swe_rl import cli
from swe_rl.grading.grade_log import read_log
from swe_rl.grading.logs import parse_log
from swe_rl.grading.report import judge, report_entry
from swe_rl.tasks.load import load_tasks
from swe_rl.types import Task, Verdict


@pytest.fixture(scope="module")
def evaluations(cases: Path) -> list[tuple[Task, str, dict[str, Any]]]:
    """(task, log, official report entry) of each."""
    tasks = {task.instance_id: task for task in load_tasks(cases / "swebench_lite_80.jsonl").tasks}
    found = []
    for folder in sorted(path.parent for path in cases.glob("evaluations/*/report.json")):
        report = json.loads((folder / "report.json").read_text())
        found.append((tasks[folder.name], read_log(folder / "test_output.txt"), report[folder.name]))
    assert len(found) == 47
    return found


def test_reports_are_equal(evaluations: list[tuple[Task, str, dict[str, Any]]]) -> None:
    for task, log, official in evaluations:
        parsed = parse_log(task, log)
        judgement = judge(task, parsed)
        entry = report_entry(judgement, parsed)
        assert (entry.pop("verdict") == "resolved") is official["resolved"]
        entry.pop("problems")
        assert entry == official, task.instance_id


def test_rows_rebuilt_from_the_report_are_enough(
    evaluations: list[tuple[Task, str, dict[str, Any]]], tmp_path: Path, cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For evaluations whose row one does not have: repository, version and the tests, nothing else."""
    rows = []
    for task, _, official in evaluations:
        groups = {name: [*lists["success"], *lists["failure"]] for name, lists in official["tests_status"].items()}
        rows.append(
            {
                "instance_id": task.instance_id,
                "FAIL_TO_PASS": groups["FAIL_TO_PASS"],
                "PASS_TO_PASS": json.dumps(groups["PASS_TO_PASS"]),
            }
        )
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for task, _, official in evaluations[::6]:
        log = cases / "evaluations" / task.instance_id / "test_output.txt"
        assert cli.main(["grade-log", "--tasks", str(path), "--instance-id", task.instance_id, "--log", str(log)]) == 0
        entry = json.loads(capsys.readouterr().out)[task.instance_id]
        assert entry["resolved"] is official["resolved"]
        for name, lists in official["tests_status"].items():
            assert {k: sorted(v) for k, v in entry["tests_status"][name].items()} == {
                k: sorted(v) for k, v in lists.items()
            }


def test_cut_logs_are_never_resolved(evaluations: list[tuple[Task, str, dict[str, Any]]]) -> None:
    """A log cut at any tenth of its length: no attempt is resolved, and without an exit code it says nothing."""
    for task, log, _ in evaluations[::5]:
        for tenth in range(10):
            cut = log[: len(log) * tenth // 10]
            judgement = judge(task, parse_log(task, cut))
            assert judgement.verdict is Verdict.INFRA_ERROR and not judgement.resolved
            ended = judge(task, parse_log(task, cut, returncode=1), 1)
            assert ended.verdict is (Verdict.UNRESOLVED if cut.strip() else Verdict.INFRA_ERROR)


def test_exit_code_must_agree(evaluations: list[tuple[Task, str, dict[str, Any]]]) -> None:
    for task, log, official in evaluations:
        parsed = parse_log(task, log, returncode=1)
        judgement = judge(task, parsed, 1)
        assert judgement.resolved is official["resolved"]  # the official harness does not look
        if official["resolved"] and not {"FAILED", "ERROR"} & set(parsed.tests.values()):
            assert judgement.verdict is Verdict.UNRESOLVED
            assert "exit code 1" in judgement.problems[0]
        assert judge(task, parse_log(task, log, returncode=124), 124).verdict is Verdict.TEST_TIMEOUT
