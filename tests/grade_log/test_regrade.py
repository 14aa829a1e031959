"""Stored patches graded again in real sandboxes, and compared."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from swe_rl import cli
from swe_rl.errors import ConfigError, DataError, UsageError
from swe_rl.grading import regrade
from swe_rl.grading.grader import grade_patch
from swe_rl.grading.regrade import config_of_run, stored_patches, tasks_of_run
from swe_rl.grading.verdict import GradeResult
from swe_rl.rollout.artifacts import attempt_name
from swe_rl.tasks.load import load_tasks, write_tasks
from swe_rl.types import Task
from tests.tasks.local_tasks import FIX, WRONG, make_archive, make_task
from tests.tasks.local_tasks import test_patch as make_patch_of_tests


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder with five attempts, whose stored verdicts are right, right, wrong, lost and right."""
    archive, base = make_archive(tmp_path / "made")
    write_tasks(tmp_path / "tasks.jsonl", [make_task(archive, base, "good")])
    run = tmp_path / "run"
    stored = [
        ("a", FIX, "resolved"),
        ("b", WRONG, "unresolved"),
        ("c", WRONG, "resolved"),
        ("d", FIX, "infra_error"),
        ("e", "", "no_patch"),
    ]
    for name, patch, verdict in stored:
        folder = run / "attempts" / f"good__g0__i{name}__1"
        folder.mkdir(parents=True)
        (folder / "patch.diff").write_bytes(patch.encode())
        (folder / "meta.json").write_text(json.dumps({"instance_id": "good", "verdict": verdict}))
    (run / "config.yaml").write_text(f"prompt_data: {tmp_path / 'tasks.jsonl'}\n")
    return run


def written(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "regrade.jsonl").read_text().splitlines()]


def test_a_task_without_a_script_costs_its_own_attempts_only(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = load_tasks(tmp_path / "tasks.jsonl").tasks[0]
    unknown = dataclasses.replace(good, instance_id="unknown", log_parser="", version="99.9")
    write_tasks(tmp_path / "tasks.jsonl", [good, unknown])
    meta = run_dir / "attempts" / "good__g0__ib__1" / "meta.json"
    meta.write_text(json.dumps({"instance_id": "unknown", "verdict": "resolved"}))
    shutil.rmtree(run_dir / "attempts" / "good__g0__ic__1")
    assert cli.main(["regrade", str(run_dir), "--sandbox", "process", "--swe-eval-timeout", "60", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["moves"] == {
        "resolved -> infra_error": 1,
        "infra_error -> resolved": 1,
    }
    found = {line["attempt"][len("good__g0__i")]: line for line in written(run_dir)}
    assert {name: line["verdict"] for name, line in found.items()} == {
        "a": "resolved", "b": "infra_error", "d": "resolved", "e": "no_patch",
    }  # fmt: skip
    assert "swebench" in found["b"]["reason"] and "does not know the repository" in found["b"]["reason"]


def test_the_folder_tells_the_task_where_nothing_else_does(tmp_path: Path) -> None:
    names = {
        attempt_name("google__gson-1093", 0, 3, 99): "google__gson-1093",
        "google__gson-1093": "google__gson-1093",
        "a__g1__i2__b__g0__i1__5": "a__g1__i2__b",
    }
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "patch.diff").write_bytes(b"")
    (tmp_path / "google__gson-1093" / "traj.json").write_text('{"info": ["odd"]}')
    assert {stored.folder.name: stored.instance_id for stored in stored_patches(tmp_path)} == names


def test_an_interrupted_run_keeps_what_it_found(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, while the third attempt is graded."""
    seen: list[bytes] = []

    async def interrupted(task: Task, patch: bytes, *rest: Any, **more: Any) -> GradeResult:
        seen.append(patch)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return await grade_patch(task, patch, *rest, **more)

    monkeypatch.setattr(regrade, "grade_patch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        regrade.main([str(run_dir), "--sandbox", "process", "--concurrency", "1"])
    assert [line["verdict"] for line in written(run_dir)] == ["resolved", "unresolved"]


def test_a_run_that_finds_nothing_leaves_what_an_earlier_one_found(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(*_: Any, **__: Any) -> GradeResult:
        raise UsageError("no swebench here")

    (run_dir / "regrade.jsonl").write_text('{"verdict": "kept"}\n')
    monkeypatch.setattr(regrade, "grade_patch", refused)
    assert cli.main(["regrade", str(run_dir), "--sandbox", "process"]) == 2
    assert written(run_dir) == [{"verdict": "kept"}] and not (run_dir / "regrade.jsonl.part").exists()
    for out in ("missing/x.jsonl", "regrade.jsonl/x.jsonl"):
        assert cli.main(["regrade", str(run_dir), "--sandbox", "process", "--out", str(run_dir / out)]) == 2
        assert "--out: cannot write" in capsys.readouterr().err
    assert cli.main(["regrade", str(run_dir), "--sandbox", "process", "--out", str(run_dir)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_regrade_compares(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["regrade", str(run_dir), "--sandbox", "process", "--swe-eval-timeout", "60", "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert {name: summary[name] for name in ("attempts", "same", "changed", "recovered", "lost")} == {
        "attempts": 5, "same": 3, "changed": 1, "recovered": 1, "lost": 0,
    }  # fmt: skip
    assert summary["moves"] == {"resolved -> unresolved": 1, "infra_error -> resolved": 1}
    lines = sorted(written(run_dir), key=lambda line: line["attempt"])
    assert [line["verdict"] for line in lines] == ["resolved", "unresolved", "unresolved", "resolved", "no_patch"]
    assert lines[0]["tests"]["tests/test_calc.py::test_add"] == "PASSED"


def test_a_run_is_graded_by_its_own_settings(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strict run's `tampered` stays so; a flag, the environment or --config say otherwise, each for itself."""
    for name in "bcde":
        shutil.rmtree(run_dir / "attempts" / f"good__g0__i{name}__1")
    folder = run_dir / "attempts" / "good__g0__ia__1"
    (folder / "patch.diff").write_text(FIX + make_patch_of_tests("def test_add():\n    pass\n"))
    (folder / "meta.json").write_text(json.dumps({"instance_id": "good", "verdict": "tampered"}))
    settings = (run_dir / "config.yaml").read_text() + "swe_strict_no_test_patch: true\nswe_eval_timeout: 61.0\n"
    (run_dir / "config.yaml").write_text(settings + "a_setting_of_an_older_version: 1\n")
    call = ["regrade", str(run_dir), "--sandbox", "process"]
    assert cli.main(call) == 0
    assert cli.main([*call, "--no-swe-strict-no-test-patch"]) == 1
    assert json.loads((run_dir / "regrade.jsonl").read_text())["verdict"] == "resolved"
    monkeypatch.setenv("SWE_EVAL_TIMEOUT", "9")
    config = config_of_run(run_dir, [])
    assert (config.swe_strict_no_test_patch, config.swe_eval_timeout, config.prompt_data) == (True, 9.0, "")
    monkeypatch.undo()
    assert config_of_run(run_dir, []).swe_eval_timeout == 61.0


def test_a_config_that_cannot_be_used(run_dir: Path) -> None:
    for text, error in {"a: [": DataError, "- a": DataError, "swe_eval_timeout: soon": ConfigError}.items():
        (run_dir / "config.yaml").write_text(text)
        with pytest.raises(error, match=r"config\.yaml"):
            config_of_run(run_dir, [])


@pytest.mark.slow
def test_verdicts_that_are_the_same(run_dir: Path) -> None:
    for name in "cd":
        meta = run_dir / "attempts" / f"good__g0__i{name}__1" / "meta.json"
        meta.write_text(json.dumps({"instance_id": "good", "verdict": "unresolved" if name == "c" else "resolved"}))
    assert cli.main(["regrade", str(run_dir), "--sandbox", "process", "--swe-eval-timeout", "60"]) == 0


def test_what_is_missing_is_said(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["regrade", str(tmp_path / "nope")]) == 1
    assert cli.main(["regrade", str(tmp_path / "made")]) == 1
    (run_dir / "config.yaml").unlink()
    assert cli.main(["regrade", str(run_dir)]) == 2
    assert "--tasks FILE" in capsys.readouterr().err
    meta = run_dir / "attempts" / "good__g0__ia__1" / "meta.json"
    meta.write_text(json.dumps({"instance_id": "stranger"}))
    assert cli.main(["regrade", str(run_dir), "--tasks", str(tmp_path / "tasks.jsonl")]) == 1
    assert "stranger" in capsys.readouterr().err
    meta.write_text("{broken")
    with pytest.raises(DataError, match=r"meta\.json: damaged"):
        stored_patches(run_dir)


def test_id_and_verdict_from_traj_or_folder(run_dir: Path) -> None:
    folder = run_dir / "attempts" / "good__g0__ia__1"
    (folder / "meta.json").unlink()
    assert stored_patches(run_dir)[0].instance_id == "good"
    (folder / "traj.json").write_text(json.dumps({"instance_id": "other", "info": {"verdict": "tampered"}}))
    first = stored_patches(run_dir)[0]
    assert (first.instance_id, first.verdict) == ("other", "tampered")
    assert set(tasks_of_run(run_dir, [])) == {"good"}
