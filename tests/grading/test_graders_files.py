"""Which files are the grader's, which new modules stand in front of the runner's: from the task and the path alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swe_rl.config.grading import GradingSettings
from swe_rl.grading.graders_files import gold_files, graders_files, helper_folders, runner_files
from swe_rl.grading.import_shadows import is_shadow
from swe_rl.grading.patch_policy import apply_policy
from swe_rl.tasks.load import load_tasks
from swe_rl.types import Task, Verdict
from tests.grading.attacks import new_file


def run(command: str, **more: object) -> Task:
    script = f"cd /testbed\nmake build\n: '>>>>> Start Test Output'\n{command}\n: '>>>>> End Test Output'\n./after.sh\n"
    task = Task("a-1", "s", eval_script=script, fail_to_pass=["t"], log_parser="pytest")
    return replace(task, **more)


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("./tests/runtests.py --verbosity 2 a.b", ["tests/runtests.py"]),
        ("PYTHONWARNINGS='ignore::A B,x' bin/test -C --verbose sympy/x.py", ["bin/test"]),
        ("timeout 300 python3.9 -W ignore /testbed/dev/run.py", ["dev/run.py"]),
        ("cd tests && ./runtests.py x; cd ..; (bash run.sh)", ["tests/runtests.py", "run.sh"]),
        ("python -m pytest tests/test_a.py", []),
        ("pytest -rA tests/test_a.py", []),
        ("python -c 'import x' a/b.py", []),
        ("/usr/bin/tox -- tests/a.py", []),
        ("../outside.sh; 'unclosed ./x.sh", []),
    ],
)
def test_programs_that_run_the_tests(command: str, files: list[str]) -> None:
    assert runner_files(run(command)) == files


def test_a_program_that_may_be_the_fix_is_not_the_graders() -> None:
    judged_by_code = run("python app.py", log_parser="exit_code", fail_to_pass=[])
    assert runner_files(judged_by_code) == []
    assert runner_files(replace(judged_by_code, patch=new_file(b"b.py").decode())) == ["app.py"]
    assert runner_files(run("./a.py && ./b.py", patch=new_file(b"b.py").decode())) == ["a.py"]
    assert runner_files(run("./a.py", log_parser="junit")) == []


def test_runners_of_the_real_rows(cases) -> None:
    """Django's runner cannot be edited; every gold patch stays whole, byte for byte."""
    rows = load_tasks(cases / "swebench_lite_80.jsonl").tasks
    assert len(rows) == 80
    for task in rows:
        runner = ["tests/runtests.py"] if task.repo == "django/django" else []
        assert runner_files(task) == runner
        gold = task.patch.encode()
        # Without what the row says of its fix, as a policy's own patch would be looked at.
        result = apply_policy(replace(task, patch=""), gold, GradingSettings())
        assert (result.patch, result.verdict, set(result.files)) == (gold, None, gold_files(task))
    edit = b"--- a/tests/runtests.py\n+++ b/tests/runtests.py\n@@ -1 +1 @@\n-x\n+y\n"
    django = next(task for task in rows if task.repo == "django/django")
    assert apply_policy(django, edit, GradingSettings()).test_files == ["tests/runtests.py"]


@pytest.mark.parametrize(
    "path",
    [
        "argparse.py", "json/__init__.py", "pytest.py", "_pytest/__init__.py", "pytest_cov/__init__.py", "imp.py", "zlib.so",
        "zlib.cpython-311-x86_64-linux-gnu.so", "attr/__init__.py", "tests/argparse.py", "sitecustomize.py",
    ],
)  # fmt: skip
def test_shadows(path: str) -> None:
    assert is_shadow(path, ("", "tests"))


@pytest.mark.parametrize(
    "path",
    ["pkg/json.py", "src/pkg/types.py", "json/new.py", "argparse.md", "calc.py", "tests/x/types.py", "src/json.py"],
)
def test_no_shadows(path: str) -> None:
    assert not is_shadow(path, ("", "tests"))


def test_an_edit_of_a_file_with_such_a_name_is_allowed() -> None:
    edit = b"--- a/types.py\n+++ b/types.py\n@@ -1 +1 @@\n-x\n+y\n"
    assert apply_policy(run("pytest"), edit, GradingSettings()).files == ["types.py"]
    assert apply_policy(run("pytest"), new_file(b"types.py"), GradingSettings()).config_files == ["types.py"]


def test_the_builds_program_is_left_out_unless_gold_touches_it() -> None:
    patch = new_file(b"setup.py") + new_file(b"pkg/setup.py")
    result = apply_policy(run("pytest"), patch, GradingSettings())
    assert (result.verdict, result.files, result.config_files) == (None, ["pkg/setup.py"], ["setup.py"])
    allowed = apply_policy(run("pytest", patch=new_file(b"setup.py").decode()), patch, GradingSettings())
    assert allowed.files == ["setup.py", "pkg/setup.py"]
    for name in (b"pytest.toml", b".pytest.toml"):
        assert apply_policy(run("pytest"), new_file(name), GradingSettings()).verdict is Verdict.NO_PATCH


def test_a_doctest_that_shows_the_bug_belongs_to_the_grader_where_the_fix_is_elsewhere():
    """A patch could change what the example expects."""
    gold = "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1 +1 @@\n-a\n+b\n"
    task = Task(
        "x", "s", fail_to_pass=["pkg/text.py::pkg.text.shout"], pass_to_pass=["pkg/core.py::pkg.core.f"], patch=gold
    )
    assert graders_files(task) == ["pkg/text.py"]
    assert graders_files(replace(task, patch=gold.replace("core", "text"))) == []  # the fix is there
    assert graders_files(replace(task, patch="")) == []  # nobody knows where it is


def test_folders_of_helpers_are_folders_of_tests():
    patch = "--- a/lib.py\n+++ b/lib.py\n@@ -1 +1 @@\n-a\n+b\n"
    doctest = Task("x", "s", pass_to_pass=["pkg/testing/mod.py::pkg.testing.mod.f"], patch=patch)
    assert helper_folders(doctest) == []  # the package of the product
    inside = Task("x", "s", pass_to_pass=["pkg/testing/test_x.py::test_x"], patch=patch)
    assert helper_folders(inside) == ["pkg/testing/"]
    assert helper_folders(replace(inside, patch="")) == []  # the fix may lie there too
    plain = replace(inside, pass_to_pass=["pkg/tests/test_x.py::test_x"], patch="")
    assert helper_folders(plain) == ["pkg/tests/"]
