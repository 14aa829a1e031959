"""Eval scripts: byte for byte those of real evaluations, and what happens where none can be made."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from swe_rl import cli
from swe_rl.config import Config
from swe_rl.errors import DataError
from swe_rl.grading.cache import cache_key
from swe_rl.tasks.certify.journal import task_key
from swe_rl.tasks.eval_script import eval_script_for
from swe_rl.tasks.load import find_task, load_tasks, write_tasks
from swe_rl.tasks.swebench_library import swebench_library
from swe_rl.tasks.test_command import script_from_command
from swe_rl.types import Task


def test_all_real_evaluations_byte_for_byte(cases: Path) -> None:
    tasks = {task.instance_id: task for task in load_tasks(cases / "swebench_lite_80.jsonl").tasks}
    evaluations = sorted(path.parent for path in cases.glob("evaluations/*/eval.sh"))
    assert len(evaluations) == 47
    for folder in evaluations:
        assert eval_script_for(tasks[folder.name]).encode() == (folder / "eval.sh").read_bytes()


def test_command_prints_exactly_the_script(cases: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    name = "django__django-13448"
    arguments = ["--tasks", str(cases / "swebench_lite_80.jsonl"), "--instance-id", name]
    assert cli.main(["data", "eval-script", *arguments]) == 0
    assert capfdbinary.readouterr().out == (cases / "evaluations" / name / "eval.sh").read_bytes()


@pytest.mark.slow
def test_the_light_import_makes_what_the_whole_package_makes(cases: Path, tmp_path: Path) -> None:
    """All 80 rows, and one for every version of every repository that the package knows, against an ordinary import."""
    pytest.importorskip("datasets")
    code = """
import json, sys
import swebench.harness.test_spec.python as scripts
from swebench.harness.test_spec.test_spec import make_test_spec
scripts.get_requirements = lambda instance: ""
scripts.get_environment_yml = lambda instance, name: ""
for line in open(sys.argv[1]):
    row = json.loads(line)
    print(json.dumps([row["instance_id"], make_test_spec(row).eval_script]))
"""
    rows = [json.loads(line) for line in (cases / "swebench_lite_80.jsonl").read_text("utf-8").splitlines()]
    assert len({row["repo"] for row in rows}) == 6
    for repo, versions in swebench_library().specs.items():
        for number, version in enumerate(name for name, spec in versions.items() if "test_cmd" in spec):
            ids = {"instance_id": f"{repo.replace('/', '__')}-{number}", "repo": repo, "version": version}
            made = {"FAIL_TO_PASS": ["a"], "PASS_TO_PASS": ["b"], "base_commit": "a" * 40, "problem_statement": "s"}
            rows.append({**rows[number % 80], **made, **ids})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    expected = dict(json.loads(line) for line in done.stdout.splitlines())
    loaded = load_tasks(path)
    assert len(loaded.tasks) == len(expected) > 700 and not loaded.rejected
    assert {task.instance_id: eval_script_for(task) for task in loaded.tasks} == expected


MULTIMODAL = {
    "instance_id": "chartjs__Chart.js-8868",
    "repo": "chartjs/Chart.js",
    "version": "3.0",
    "base_commit": "a" * 40,
    "problem_statement": "The plot is wrong.",
    "test_patch": (
        "diff --git a/test/specs/a.tests.js b/test/specs/a.tests.js\n--- a/test/specs/a.tests.js\n"
        "+++ b/test/specs/a.tests.js\n@@ -1 +1 @@\n-a\n+b\n"
    ),
    "FAIL_TO_PASS": '["a"]',
    "PASS_TO_PASS": "[]",
    "image_assets": '{"problem_statement": null, "test_patch": [{"path": "test/a.png", "url": "https://x/a.png"}]}',
}


@pytest.mark.parametrize("repo", ["chartjs/Chart.js", "Automattic/wp-calypso"])
@pytest.mark.parametrize("nested", [False, True], ids=["text", "object"])
def test_pictures_of_multimodal_rows(repo: str, nested: bool, tmp_path: Path) -> None:
    """swebench's script fetches them: the same from JSONL, Parquet and our own form."""
    library = swebench_library()
    row: dict[str, Any] = {**MULTIMODAL, "repo": repo, "version": next(iter(library.specs[repo]))}
    expected = library.make_test_spec(row).eval_script
    assert "\nmkdir -p test\ncurl -o test/a.png https://x/a.png\nchmod 777 test/a.png\n" in expected
    if nested:
        row["image_assets"] = json.loads(row["image_assets"])
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "t.parquet")
    (text,), (table,) = (load_tasks(tmp_path / name).tasks for name in ("t.jsonl", "t.parquet"))
    write_tasks(tmp_path / "own.jsonl", [table])
    for task in (text, table, *load_tasks(tmp_path / "own.jsonl").tasks):
        assert eval_script_for(task) == expected
    without = dataclasses.replace(text, metadata={})
    assert task_key(text, 1, "pool", Config()) != task_key(without, 1, "pool", Config())
    assert cache_key(text, b"", "pool") != cache_key(without, b"", "pool")


def test_the_library_leaves_nothing_heavy_behind() -> None:
    code = (
        "import sys; from swe_rl.tasks.swebench_library import swebench_library; swebench_library();"
        "print([m for m in sys.modules if m.split('.')[0] in ('swebench', 'datasets', 'docker', 'modal', 'requests')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_specs_and_parsers_are_there() -> None:
    library = swebench_library()
    assert {"django/django", "sympy/sympy", "matplotlib/matplotlib"} <= set(library.parsers)
    assert len(library.specs) > 20 and "chartjs/Chart.js" in library.fail_only_repos


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repo": "own/project"}, "does not know the repository"),
        ({"version": "99.9"}, "does not know version '99.9'"),
        (
            {"test_patch": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1 @@\n-a\n+b\n"},
            "cannot make its eval script",
        ),
    ],
)
def test_why_no_script_can_be_made(cases: Path, changes: dict[str, str], words: str) -> None:
    task = find_task(cases / "swebench_lite_80.jsonl", "django__django-11099")
    for name, value in changes.items():
        setattr(task, name, value)
    with pytest.raises(DataError, match=words):
        eval_script_for(task)


def test_the_rows_own_script_wins(cases: Path) -> None:
    task = find_task(cases / "swebench_lite_80.jsonl", "django__django-11099")
    task.eval_script = "echo mine\n"
    assert eval_script_for(task) == "echo mine\n"


def test_swe_gym_rows(cases: Path) -> None:
    moto, dask, conan = load_tasks(cases / "swegym_3.jsonl").tasks
    script = eval_script_for(moto)
    files = "tests/test_cognitoidp/test_cognitoidp_exceptions.py"
    assert f"\ngit checkout {moto.base_commit} -- {files}\n" in script and f"\npytest -n0 -rA {files}\n" in script
    assert "pytest -n0 -rA  --color=no dask/array/tests/test_masked.py" in eval_script_for(dask)  # the row's own
    assert "export PYTHONPATH=${PYTHONPATH:-}:$(pwd)" in eval_script_for(conan)
    for text in map(eval_script_for, (moto, dask, conan)):
        assert text.count(">>>>> Start Test Output") == text.count(">>>>> End Test Output") == 1
        assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("true", 0),
        ("echo 'PASSED x'; exit 7", 7),
        ("false | cat", 1),
        ("set -e\nfalse\ntrue", 1),
        ("echo $UNSET; cat <<'E'\nx)\nE\n(exit 3)", 3),
    ],
)
def test_a_commands_exit_code_is_the_scripts(tmp_path: Path, command: str, code: int) -> None:
    done = subprocess.run(
        ["bash"], input=script_from_command(command), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert "Start Test Output" in done.stderr and "End Test Output" in done.stderr


def test_command_on_a_task_that_is_missing(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tasks", str(cases / "swegym_3.jsonl"), "--instance-id", "nope"]
    assert cli.main(["data", "eval-script", *arguments]) == 1
    assert "no task 'nope' among 3" in capsys.readouterr().err


def test_a_task_without_anything() -> None:
    with pytest.raises(DataError, match="give the row an eval_script"):
        eval_script_for(Task("a-1", "s"))
