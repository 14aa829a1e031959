"""Rows of SWE-smith and R2E-Gym, bare, wrapped and converted: which patch is the fix, which commit the base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swe_rl.tasks.forms import form_of, task_from_row
from swe_rl.tasks.load import load_tasks, write_tasks
from swe_rl.types import Task

BUG = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-good\n+bad\n"
FIX = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-bad\n+good\n"
NOTE = "No newline at end of file"
SMITH: dict[str, Any] = {
    "instance_id": "o__p.1a2b3c4d.lm__x",
    "repo": "swesmith/o__p.1a2b3c4d",
    "image_name": "jyangballin/swesmith.x86_64.o_1776_p.1a2b3c4d",
    "base_commit": "c" * 40,
    "patch": BUG,
    "problem_statement": "s",
    "FAIL_TO_PASS": ["tests/test_m.py::test_a"],
    "PASS_TO_PASS": ["tests/test_n.py::test_b"],
}


def line(kind: str, content: str) -> dict[str, str]:
    return {"type": kind, "content": content}


def file_diff(path: str, **changes: Any) -> dict[str, Any]:
    hunk = {
        "descriptor": {
            "old_range": {"start": 1, "length": None}, "new_range": {"start": 1, "length": 2}, "section": "",
        },
        "line_group": {"all_lines": [line("deleted", "bad"), line("added", "good"), line("added", "x"), line("note", NOTE)]},
    }  # fmt: skip
    diff = {
        "old_file_content": "bad\n", "new_file_content": "good\nx", "header": {"file": {"path": path}, "misc_line": None},
        "minus_file": {"path": f"a/{path}"}, "plus_file": {"path": f"b/{path}"}, "hunks": [hunk], "is_binary_file": False,
    }  # fmt: skip
    return {**diff, **changes}


COMMIT = {
    "file_diffs": [
        file_diff("m.py"),
        file_diff("tests/test_m.py"),
        file_diff("logo.png", is_binary_file=True, hunks=[]),
    ],
    "old_commit_hash": "a" * 40 + "^",
    "new_commit_hash": "a" * 40,
}
R2E: dict[str, Any] = {
    "repo_name": "orange3",
    "docker_image": "namanjain12/orange3_final:" + "a" * 40,
    "commit_hash": "a" * 40,
    "problem_statement": "[ISSUE]\nIt **breaks**.\n[/ISSUE]",
    "expected_output_json": json.dumps({"\x1b[32mTestA.test_b[a b]\x1b[0m - x": "PASSED", "TestA.test_c": "FAILED"}),
    "parsed_commit_content": json.dumps(COMMIT),
}


def wrapped(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        row,
        {"text": "t", "metadata": {"instance": row, "data_source": "d"}},
        {"prompt": "p", "instance": json.dumps(row), "data_source": "d"},
    ]


@pytest.mark.parametrize("row", wrapped(SMITH))
def test_swe_smiths_patch_is_the_bug(row: dict[str, Any]) -> None:
    task = task_from_row(row)
    assert (task.patch, task.metadata["bug_patch"]) == (FIX, BUG)
    assert (task.base_commit, task.metadata["bug_commit"]) == ("", "c" * 40)  # a commit that the image does not hold
    assert task.log_parser == "pytest" and "--verbose tests/test_m.py tests/test_n.py\n" in task.eval_script
    assert task.test_files == ["tests/test_m.py", "tests/test_n.py"]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("swesmith.x86_64.O__p.1a2b", "jyangballin/swesmith.x86_64.o_1776_p.1a2b:latest"),
        ("jyangballin/swesmith.x86_64.o_1776_p.1a2b", "jyangballin/swesmith.x86_64.o_1776_p.1a2b"),
        ("r.example/mine:1", "r.example/mine:1"),
        ("", "jyangballin/swesmith.x86_64.o_1776_p.1a2b3c4d:latest"),
    ],
)
def test_short_image_names_are_the_published_ones(name: str, published: str) -> None:
    assert task_from_row({**SMITH, "image_name": name}).image == published


def test_tests_that_are_none_of_pytests_need_a_command() -> None:
    row = {**SMITH, "FAIL_TO_PASS": ["TestParse/empty"]}
    with pytest.raises(ValueError, match=r"TestParse/empty.*eval_cmd"):
        task_from_row(row)
    task = task_from_row({**row, "test_cmd": "go test -v ./..."})
    assert task.patch == FIX and "go test" in task.eval_script


def test_a_row_with_an_image_name_is_not_swe_smiths_for_that() -> None:
    row = {**SMITH, "repo": "own/p", "image_name": "own/p:1", "eval_script": "true"}
    assert form_of(row) == "swebench" and task_from_row(row).patch == BUG


@pytest.mark.parametrize("row", wrapped(R2E))
def test_r2e_gyms_commit_is_the_fix(row: dict[str, Any]) -> None:
    task = task_from_row(row)
    assert (task.instance_id, task.problem_statement) == ("orange3__" + "a" * 40, "It **breaks**.\n")
    assert (task.base_commit, task.metadata["fix_commit"]) == ("", "a" * 40)  # the image has the commit before it
    assert (task.log_parser, task.fail_to_pass) == ("r2e", ["TestA.test_b[a b]"])
    assert task.patch == FIX.replace("+1 @@", "+1,2 @@") + f"+x\n\\ {NOTE}\n"
    assert task.test_files == ["run_tests.sh", "r2e_tests"]
    assert task.image.startswith("namanjain12/orange3_final:a") and "run_tests.sh" in task.eval_script


@pytest.mark.parametrize("commit", ['{"file_diffs": [1]}', '{"file_diffs": [{"header": {}}]}', "[]", "{"])
def test_a_commit_in_another_form_is_a_row_error(commit: str) -> None:
    with pytest.raises(ValueError, match="parsed_commit_content"):
        task_from_row({**R2E, "parsed_commit_content": commit})


@pytest.mark.parametrize("row", [SMITH, {**SMITH, "test_cmd": "pytest"}, R2E])
def test_converting_twice_turns_nothing_around_again(row: dict[str, Any], tmp_path: Path) -> None:
    tasks: list[Task] = [task_from_row(row)]
    for round_ in range(2):
        write_tasks(tmp_path / f"{round_}.jsonl", tasks)
        assert load_tasks(tmp_path / f"{round_}.jsonl").tasks == tasks
