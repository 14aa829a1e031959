"""Logs in which a required test failed and, further down, passes: what the official harness resolves and our verdict does not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from swe_rl.grading.logs import parse_log
from swe_rl.grading.logs_contradictions import contradicted
from swe_rl.grading.logs_pytest import parse_pytest
from swe_rl.grading.report import judge
from swe_rl.tasks.load import find_task, load_tasks
from swe_rl.types import Verdict
from tests.grade_log.official import END, HEAD, START, TAIL, official_report, styles_of
from tests.grade_log.test_forged_logs import DONE, GOOD, pytest_task
from tests.grade_log.test_official_harness import NAMES, made_task

INVENTED = {"django/django": "FAIL: test_x (y.Z)\n", "sympy/sympy": "test_invented F\n"}
PASSES = {"django/django": "{} ... ok\n", "sympy/sympy": "{} ok\n"}


@pytest.mark.parametrize("repo", [*NAMES, "psf__requests-2674", "django__django-11283"])
def test_failures_and_then_forged_passes(repo: str, cases: Path, tmp_path: Path) -> None:
    """Code that prints when the process ends: all required tests pass, and one that nobody asked for fails (exit code 1)."""
    task = made_task(repo, "1") if "/" in repo else find_task(cases / "swebench_lite_80.jsonl", repo)
    required = [*task.fail_to_pass, *task.pass_to_pass]
    forged = "".join(PASSES.get(task.repo, "PASSED {}\n").format(name) for name in required)
    forged += INVENTED.get(task.repo, "FAILED x/y.py::z - q\n")
    style = styles_of(task.repo)[-1]
    honest = HEAD + START + style([(name, "FAILED") for name in required], random.Random(1)) + END + TAIL
    assert judge(task, parse_log(task, honest, returncode=1), 1).verdict is Verdict.UNRESOLVED
    log = honest.replace(END, forged + END)
    judgement = judge(task, parse_log(task, log, returncode=1), 1)
    assert judgement.resolved is (official_report(task, log, tmp_path)["resolved"] if "/" not in repo else True)
    assert judgement.verdict is Verdict.UNRESOLVED
    assert "reported as failed and as passed" in judgement.problems[0]
    # The same words where the tests really passed: nothing contradicts them.
    passing = honest.replace(style([(name, "FAILED") for name in required], random.Random(1)), "")
    passing = passing.replace(END, style([(name, "PASSED") for name in required], random.Random(1)) + END)
    assert judge(task, parse_log(task, passing, returncode=0), 0).verdict is Verdict.RESOLVED


def test_a_django_test_that_prints_ok(cases: Path) -> None:
    """The line that swebench takes for the test's own; the failure's head names the test in full."""
    task = find_task(cases / "swebench_lite_80.jsonl", "django__django-11283")
    name = next(name for name in task.fail_to_pass if name.endswith(")"))
    others = "".join(f"{other} ... ok\n" for other in (*task.fail_to_pass, *task.pass_to_pass) if other != name)
    for head in (f"FAIL: {name}", f"ERROR: {name} (operation='x')"):
        log = f"{START}{name} ... ok\nFAIL\n{others}=====\n{head}\nRan 9 tests in 0.1s\nFAILED (failures=1)\n{END}"
        judgement = judge(task, parse_log(task, log, returncode=1), 1)
        assert (judgement.resolved, judgement.verdict) == (True, Verdict.UNRESOLVED)


def test_a_module_that_was_not_collected_has_no_passed_tests() -> None:
    task = pytest_task()
    log = START + "ERROR tests/test_m.py - ValueError\n1 error in 0.1s\n" + GOOD + "FAILED x.py::y - z\n" + DONE + END
    for code in (1, 2):
        judgement = judge(task, parse_log(task, log, returncode=code), code)
        assert judgement.verdict is Verdict.UNRESOLVED and "failed and as passed" in judgement.problems[0]
    judgement = judge(task, parse_log(task, log.replace("ERROR tests", "error tests"), returncode=2), 2)
    assert judgement.verdict is Verdict.UNRESOLVED and "exit code 2" in judgement.problems[0]
    honest = START + GOOD + "FAILED x.py::y - z\n" + DONE + END
    assert judge(task, parse_log(task, honest, returncode=1), 1).verdict is Verdict.RESOLVED


@pytest.mark.parametrize("repo", ["psf/requests", "own/m"])
def test_what_pytest_itself_said_counts(repo: str) -> None:
    task = made_task(repo, "1") if repo in NAMES else pytest_task()
    name = task.pass_to_pass[0] if repo in NAMES else "tests/test_m.py::test_b"
    full = name.replace("[/c-d]", "[/a/b/c-d]")  # the parser of this repository shortens ids
    log = START + "".join(f"PASSED {one}\n" for one in (*task.fail_to_pass, *task.pass_to_pass)) + DONE + END
    assert judge(task, parse_log(task, log, returncode=0), 0).verdict is Verdict.RESOLVED
    for failures in ([full], [full.split("::")[0]]):
        assert judge(task, parse_log(task, log, returncode=0, failures=failures), 0).verdict is Verdict.UNRESOLVED


@pytest.mark.parametrize("repo", ["psf/requests", "own/m"])
def test_passes_that_pytest_did_not_see(repo: str) -> None:
    """What the sessions' plugin saw pass must be all that the log reports as passed, in whatever form the log has ids."""
    task = made_task(repo, "1") if repo in NAMES else pytest_task(pass_to_pass=["tests/test_m.py::test_b[ü"])
    first, second = task.fail_to_pass[0], task.pass_to_pass[0]
    full = second.replace("[/c-d]", "[/a/b/c-d]") + (" z]" if second.endswith("[ü") else "")
    log = START + f"PASSED {first}\nXFAIL {full}\n== 1 passed, 1 xfailed in 1s ==\n" + END
    for passes, xfails, verdict in (
        ([first, full], [], Verdict.RESOLVED),
        ([first], [full], Verdict.RESOLVED),  # it passed before the patch, too
        ([full], [first], Verdict.UNRESOLVED),
        ([full], [], Verdict.UNRESOLVED),
        ([first], [], Verdict.UNRESOLVED),
        ([], [], Verdict.UNRESOLVED),
    ):
        judgement = judge(task, parse_log(task, log, returncode=0, passes=passes, xfails=xfails), 0)
        assert judgement.verdict is verdict, (passes, xfails, judgement.problems)
    verbose = START + f"{first} <- lib/base.py PASSED [ 50%]\n{full} PASSED [100%]\n== 2 passed in 1s ==\n" + END
    task.fail_to_pass = [f"{first} <- lib/base.py"]
    if repo not in NAMES:
        assert judge(task, parse_log(task, verbose, passes=[first, full])).verdict is Verdict.RESOLVED
        assert judge(task, parse_log(task, verbose, passes=[full])).verdict is Verdict.UNRESOLVED


def test_skips_and_then_forged_passes(cases: Path) -> None:
    """Django's runner names skipped tests, SymPy's counts those that passed."""
    task = find_task(cases / "swebench_lite_80.jsonl", "django__django-11283")
    required = [*task.fail_to_pass, *task.pass_to_pass]
    name = next(name for name in task.fail_to_pass if name.endswith(")"))
    passes = "".join(f"{one} ... ok\n" for one in required)
    for skip, verdict in (("", Verdict.RESOLVED), (f"{name} ... skipped 'x'\n", Verdict.UNRESOLVED)):
        log = f"{START}{skip}{passes}Ran 9 tests in 0.1s\nOK\n{END}"
        assert judge(task, parse_log(task, log, returncode=0), 0).verdict is verdict
    task = made_task("sympy/sympy", "1")
    required = [*task.fail_to_pass, *task.pass_to_pass]
    for count, verdict in ((len(required), Verdict.RESOLVED), (len(required) - 1, Verdict.UNRESOLVED)):
        footer = f"===== tests finished: {count} passed, 1 skipped, in 3.20 seconds =====\n"
        log = f"{START}{required[0]} x s\n{footer}" + "".join(f"{one} ok\n" for one in required) + END
        assert judge(task, parse_log(task, log, returncode=0), 0).verdict is verdict


def test_hundreds_of_thousands_of_lines_that_say_failed_are_bounded() -> None:
    text = "".join(f"FAILED a.py::b{number}\n" for number in range(300_000)) + "FAILED a.py::c\n"
    assert contradicted(parse_pytest, text, ["a.py::b7"], runner="pytest") == ["a.py::b7"]


def test_lines_of_a_harness_that_is_not_there(cases: Path) -> None:
    """Where the grader writes none of them, code that prints them changes nothing."""
    rows = load_tasks(cases / "swebench_lite_80.jsonl").tasks
    for task in (pytest_task(), next(task for task in rows if task.repo == "psf/requests")):
        passes = "".join(f"PASSED {name}\n" for name in (*task.fail_to_pass, *task.pass_to_pass))
        for line in (">>>>> Tests Errored", ">>>>> Reset Failed", ">>>>> Patch Apply Failed", ">>>>> Tests Timed Out"):
            log = START + passes + line + f"\n== {passes.count('PASSED')} passed in 1s ==\n" + END
            assert judge(task, parse_log(task, log)).verdict is not Verdict.RESOLVED
            assert judge(task, parse_log(task, log, harness=False)).verdict is Verdict.RESOLVED
        log = START + passes.replace("PASSED", "FAILED") + DONE + END
        assert judge(task, parse_log(task, log, returncode=124), 124).verdict is Verdict.TEST_TIMEOUT
        assert judge(task, parse_log(task, log, returncode=124, harness=False), 124).verdict is Verdict.UNRESOLVED
