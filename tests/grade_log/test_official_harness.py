"""For every repository of SWE-bench: the report of a log equals that of swebench's own get_eval_report, whatever the log."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_rl.grading.logs import _HARNESS_LINES, parse_log
from swe_rl.grading.report import judge, report_entry
from swe_rl.tasks.forms import task_from_row
from swe_rl.tasks.load import load_tasks
from swe_rl.tasks.swebench_library import swebench_library
from swe_rl.types import Task, Verdict
from tests.grade_log.official import END, HEAD, START, STATUSES, TAIL, official_report, styles_of

# Repositories of SWE-bench (Lite, Verified, full) with names of the kinds that their parsers meet.
NAMES = {
    "astropy/astropy": ["astropy/io/tests/test_a.py::test_x[a-b]", "astropy/io/tests/test_a.py::TestB::test_c"],
    "django/django": ["test_a (admin.tests.ATests)", "A docstring: with dots. (x.Y)", "--version is equivalent to version"],
    "marshmallow-code/marshmallow": ["tests/test_m.py::test_a"],
    "matplotlib/matplotlib": ["lib/m/tests/test_b.py::test_click[1]", "lib/m/tests/test_b.py::test_c[png]"],
    "mwaskom/seaborn": ["tests/test_s.py::TestA::test_b[x0]", "tests/test_s.py::TestA::test_c"],
    "pallets/flask": ["tests/test_f.py::test_a"],
    "psf/requests": ["test_requests.py::TestR::test_b[http://x/y/z]", "test_requests.py::TestR::test_p[/c-d]"],
    "pydata/xarray": ["xarray/tests/test_x.py::test_y[True-1]"],
    "pylint-dev/astroid": ["tests/test_a.py::T::test_b"],
    "pylint-dev/pylint": ["tests/test_f.py::test_functional[/name]", "tests/test_f.py::test_functional[name]"],
    "pytest-dev/pytest": ["testing/test_a.py::TestB::test_c[-False]", "testing/test_a.py::test_d[a"],
    "pvlib/pvlib-python": ["pvlib/tests/test_p.py::test_a"],
    "pydicom/pydicom": ["pydicom/tests/test_p.py::TestA::test_b"],
    "pyvista/pyvista": ["tests/test_p.py::test_a[1]"],
    "scikit-learn/scikit-learn": ["sklearn/tests/test_s.py::test_a[est0]", "sklearn/tests/test_s.py::test_b"],
    "sphinx-doc/sphinx": ["tests/test_b.py::test_c", "tests/test_b.py::test_d[x]"],
    "sqlfluff/sqlfluff": ["test/core/t_test.py::test__a[True-b]"],
    "sympy/sympy": ["test_a", "test_Mul_b", "test_c"],
}  # fmt: skip
NOISE = [
    "DEBUG x", "", "ok", "  ok then", "silenced).", " ... ", "Traceback (most recent call last):", "_ a.py:3 _", "token",
    "Testing against Django installed in '/x' with up to 2 processes", "PASSED by", "1 passed in 0.1s", "x in y",
    "\x1b[31mFAILED\x1b[0m t.py::a",
]  # fmt: skip
OTHERS = ["t.py::test_other[a b]", "t.py::test_ä", "t.py::TestX::test_y[a - b]", "t.py"]


def made_task(repo: str, version: str) -> Task:
    names = NAMES[repo]
    return Task(
        f"{repo.replace('/', '__')}-1", "s", repo=repo, version=version, base_commit="a" * 40, fail_to_pass=names[:1],
        pass_to_pass=names[1:], test_patch="diff --git a/t/test_m.py b/t/test_m.py\n--- a/t/test_m.py\n+++ b/t/test_m.py\n",
    )  # fmt: skip


@pytest.fixture(scope="module")
def tasks(cases: Path) -> list[Task]:
    """The 80 real rows, and one task for every repository with Python tests that the package knows."""
    made = [made_task(repo, next(iter(swebench_library().specs[repo]))) for repo in NAMES]
    return load_tasks(cases / "swebench_lite_80.jsonl").tasks + made


def differences(task: Task, log: str, folder: Path) -> dict[str, Any]:
    """What differs from the official entry; empty where the reports are equal."""
    parsed = parse_log(task, log)
    entry = report_entry(judge(task, parsed), parsed)
    official = official_report(task, log, folder)
    return {name: (entry.get(name), official.get(name)) for name in official if entry.get(name) != official.get(name)}


def test_every_repository_with_python_tests_is_meant() -> None:
    python = {repo for repo, parser in swebench_library().parsers.items() if parser.__module__.endswith(".python")}
    assert python == set(NAMES)


def test_logs_of_every_outcome(tasks: list[Task], tmp_path: Path) -> None:
    """All pass; one required test with each other outcome; then dice for all of them."""
    dice = random.Random(11)
    resolved, seen = 0, set()
    for task in tasks:
        every = () if task.repo in seen else STATUSES
        seen.add(task.repo)
        required = [*task.fail_to_pass, *task.pass_to_pass]
        for style in styles_of(task.repo):
            for wanted in (*every, "PASSED", "dice", "dice"):
                results = [(name, "PASSED") for name in required]
                if wanted == "dice":
                    results = [(name, dice.choice(STATUSES)) for name in required + OTHERS]
                    dice.shuffle(results)
                else:
                    one = dice.randrange(len(required))
                    results[one] = (required[one], wanted)
                log = HEAD + START + style(results, dice) + END + TAIL
                if wanted == "dice":  # anything may stand between the lines, and next to them
                    lines = log.split("\n")
                    for _ in range(30):
                        lines.insert(dice.randrange(len(HEAD.split("\n")), len(lines) - 5), dice.choice(NOISE))
                    log = "\n".join(lines)
                assert differences(task, log, tmp_path) == {}, (task.instance_id, style.__name__, wanted)
                assert differences(task, log.replace("\n", "\r\n"), tmp_path) == {}
                resolved += judge(task, parse_log(task, log)).verdict is Verdict.RESOLVED
    assert resolved >= len(tasks)


def test_logs_that_broke_off(tasks: list[Task], tmp_path: Path) -> None:
    """Patch not applied, reset failed, timed out, errored, cut anywhere: never resolved, and the official fields equal."""
    constants: Any = swebench_library().eval_tests_report.__globals__
    lines = [constants[name] for name in ("APPLY_PATCH_FAIL", "RESET_FAILED", "TESTS_ERROR", "TESTS_TIMEOUT")]
    assert set(lines) == set(_HARNESS_LINES)
    dice = random.Random(12)
    for task in tasks[::3]:
        results = [(name, "PASSED") for name in [*task.fail_to_pass, *task.pass_to_pass]]
        whole = HEAD + START + styles_of(task.repo)[0](results, dice) + END + TAIL
        broken = [whole + f"\n\n{line}: 1800 seconds exceeded" for line in lines] + [
            lines[0] + ":\nerror: patch failed\n"
        ]
        broken += [
            f"{cut}\n\nTimeout error: 1800 seconds exceeded." for cut in (whole, whole[: whole.index(END)], HEAD)
        ]
        broken += ["", "\n", HEAD, HEAD + START, *(whole[: dice.randrange(whole.index(END))] for _ in range(3))]
        broken.append(HEAD + START + "ImportError while loading conftest '/testbed/conftest.py'.\n" + END)
        for log in broken:
            assert differences(task, log, tmp_path) == {}, (task.instance_id, log[-200:])
            assert judge(task, parse_log(task, log)).verdict is not Verdict.RESOLVED


def test_ids_of_any_length(tasks: list[Task], tmp_path: Path) -> None:
    """Lines of results are read whole; where swebench's parser would take hours for one, nothing is read."""
    for task in {task.repo: task for task in tasks if task.repo not in ("django/django", "sympy/sympy")}.values():
        name = f"t/test_m.py::test_long[{'x' * 20_000}]"
        longer = replace(task, fail_to_pass=[name], pass_to_pass=[])
        style = styles_of(task.repo)[0]
        log = HEAD + START + style([(name, "PASSED")], random.Random(1)) + END + TAIL
        assert differences(longer, log, tmp_path) == {}, task.repo
        assert judge(longer, parse_log(longer, log)).verdict is Verdict.RESOLVED, task.repo
    stalls = HEAD + START + "PASSED " + "[" * 20_000 + "\n== 1 passed in 1s ==\n" + END + TAIL
    assert judge(made_task("psf/requests", "1"), parse_log(made_task("psf/requests", "1"), stalls)).resolved is False


def test_rows_that_name_no_required_test(tmp_path: Path) -> None:
    """Official: all of none has passed. Our verdict asks for the exit code."""
    version = next(iter(swebench_library().specs["psf/requests"]))
    task = replace(made_task("psf/requests", version), fail_to_pass=[], pass_to_pass=[])
    for text in ("PASSED a.py::b\n== 1 passed in 1s ==\n", "", "FAILED a.py::b - x\n== 1 failed in 1s ==\n"):
        log = HEAD + START + text + END + TAIL
        assert differences(task, log, tmp_path) == {}
        assert judge(task, parse_log(task, log)).resolved
        assert judge(task, parse_log(task, log, returncode=1), 1).verdict is Verdict.UNRESOLVED
    assert differences(task, HEAD + START, tmp_path) == {}
    assert not judge(replace(task, repo="own/m"), parse_log(replace(task, repo="own/m"), HEAD + START + END)).resolved


def test_a_test_without_a_name_is_a_failure(cases: Path, tmp_path: Path) -> None:
    """As in the official harness, which finds no status for it; only lines of text may be empty."""
    row = json.loads((cases / "swebench_lite_80.jsonl").read_text("utf-8").splitlines()[0])
    log = HEAD + START + styles_of(row["repo"])[0]([("a", "PASSED"), ("b", "PASSED")], random.Random(1)) + END + TAIL
    for tests in (["", "a"], json.dumps(["", "a"]), repr(["", "a"])):
        task = task_from_row({**row, "FAIL_TO_PASS": tests, "PASS_TO_PASS": ["b"]})
        assert task.fail_to_pass == ["", "a"]
        assert differences(task, log, tmp_path) == {}
        entry = official_report(task, log, tmp_path)
        assert (entry["resolved"], entry["tests_status"]["FAIL_TO_PASS"]["failure"]) == (False, [""])
        assert judge(task, parse_log(task, log)).verdict is Verdict.UNRESOLVED
    assert task_from_row({**row, "FAIL_TO_PASS": "a\n\nc\n"}).fail_to_pass == ["a", "c"]


def test_results_outside_the_markers(tasks: list[Task], tmp_path: Path) -> None:
    """Standard error behind the end of the trace or before it, a second pair of markers: official, but nobody's proof."""
    dice = random.Random(14)
    for task in tasks[::3]:
        required = [*task.fail_to_pass, *task.pass_to_pass]
        style = styles_of(task.repo)[0]
        good = style([(name, "PASSED") for name in required], dice)
        bad = style([(name, "FAILED") for name in required], dice)
        outside = [HEAD + START + END + TAIL + good, HEAD + good + START + END + TAIL]
        resolved = [*outside, HEAD + START + good + END + START + bad + END, END + HEAD + START + good + END + TAIL]
        for log in [*resolved, HEAD + START + bad + END + START + good + END, HEAD + START + END + bad]:
            assert differences(task, log, tmp_path) == {}, (task.instance_id, log[-200:])
            judgement = judge(task, parse_log(task, log))
            assert judgement.verdict is not Verdict.RESOLVED and judgement.resolved is (log in resolved)
            assert log not in outside or any("outside the markers" in problem for problem in judgement.problems)
            # In a log of ours, the harness of which knows its markers, what is outside counts in no field.
            assert not judge(task, parse_log(task, outside[0], harness=False)).resolved


def test_time_that_was_up(tasks: list[Task]) -> None:
    """The harness' last words decide, also where the tests printed an end of their own before they hung; nobody else's do."""
    words = "\n\nTimeout error: 1800 seconds exceeded."
    task = tasks[0]
    good = START + styles_of(task.repo)[0](
        [(n, "PASSED") for n in task.fail_to_pass + task.pass_to_pass], random.Random(1)
    )
    for log in (HEAD + good, HEAD, HEAD + good + END):
        assert judge(task, parse_log(task, log + words)).verdict is Verdict.TEST_TIMEOUT
    assert judge(task, parse_log(task, HEAD + good + words + "\n" + END)).verdict is Verdict.RESOLVED
    assert judge(task, parse_log(task, HEAD + good + END + words, harness=False)).verdict is Verdict.RESOLVED


@pytest.mark.parametrize(
    "word", ["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "FAIL:", "ERROR:", "ok", " ... ", "_ .py: _", "test_"]
)
def test_a_word_alone_is_no_parsers_end(word: str, tasks: list[Task]) -> None:
    """Where swebench's parser raises for such a line (its harness then has no report), the other lines still count."""
    dice = random.Random(13)
    for task in {task.repo: task for task in tasks}.values():
        results = [(name, "PASSED") for name in [*task.fail_to_pass, *task.pass_to_pass]]
        log = (
            HEAD
            + START
            + f"{word}\n"
            + styles_of(task.repo)[0](results, dice).replace("\n", f"\n{word}\n", 1)
            + END
            + TAIL
        )
        assert judge(task, parse_log(task, log)).verdict is Verdict.RESOLVED, (task.repo, parse_log(task, log).problems)
