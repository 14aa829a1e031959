"""The official harness's report of a log, and logs in the form in which each repository's test runner prints them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from swe_rl.tasks.eval_script import make_spec
from swe_rl.tasks.swebench_library import swebench_library
from swe_rl.types import Task

START, END = "+ : '>>>>> Start Test Output'\n", "+ : '>>>>> End Test Output'\n"
HEAD = (
    "+ source /opt/miniconda3/bin/activate\n++ conda activate testbed\n+ cd /testbed\n+ git status\nOn branch main\n"
    "+ git diff abc\ndiff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-PASSED x\n+ERROR y\n"
    "+ git apply -v -\nChecking patch t.py...\nApplied patch t.py cleanly.\n"
)
TAIL = "+ git checkout abc t.py\nUpdated 1 path from cb08383bf7\n"
STATUSES = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS", "missing")


def official_report(task: Task, log: str, folder: Path) -> dict[str, Any]:
    """swebench's own get_eval_report, from a file, as its harness calls it."""
    library = swebench_library()
    get_eval_report: Any = library.eval_tests_report.__globals__["get_eval_report"]
    path = folder / "test_output.txt"
    path.write_text(log, encoding="utf-8", newline="")
    prediction = {"instance_id": task.instance_id, "model_patch": "x", "model_name_or_path": "m"}
    entry: dict[str, Any] = get_eval_report(make_spec(task, library), prediction, str(path), True)[task.instance_id]
    return entry


def pytest_lines(results: Iterable[tuple[str, str]], dice: random.Random) -> str:
    """`pytest -rA`: the summary that modern versions print, with captured output and colours before it."""
    lines, counts = (
        ["===== test session starts =====", "collected 9 items", "t.py .F.s", "---- Captured stdout ----", "passed"],
        0,
    )
    reasons = {
        "FAILED": [" - AssertionError: a - b", "", " - x"],
        "ERROR": [" - KeyError: 'a b'", ""],
        "XFAIL": ["", " - known"],
    }
    for name, status in results:
        counts += 1
        if status == "SKIPPED":
            lines.append(f"SKIPPED [1] t.py:{counts}: needs a b")
        elif status != "missing":
            lines.append(f"{status} {name}{dice.choice(reasons.get(status, ['']))}")
    return "\n".join([*lines, f"==== {counts} passed, 1 warning in 3.21s ====", ""])


def verbose_lines(results: Iterable[tuple[str, str]], dice: random.Random) -> str:
    """`pytest -v` of old versions, in colour: the status after the name."""
    lines, counts = ["collected 9 items"], 0
    for name, status in results:
        counts += 1
        if status != "missing":
            colour = dice.choice(["{}", "\x1b[32m{}\x1b[0m"])
            lines.append(f"{name} {colour.format(status.lower() if status[0] == 'X' else status)}")
    return "\n".join([*lines, f"===== {counts} passed in 12.00 seconds =====", ""])


def sympy_lines(results: Iterable[tuple[str, str]], dice: random.Random) -> str:
    """`bin/test -C --verbose`: one line a test, failures between underscores, a footer."""
    marks = {"PASSED": "ok", "FAILED": "F", "ERROR": "E", "SKIPPED": "s", "XFAIL": "f", "XPASS": "X"}
    lines, failures, counts = ["sympy/core/tests/test_a.py[9]"], [], 0
    for name, status in results:
        counts += 1
        if status == "missing":
            continue
        lines.append(f"{name} {dice.choice(['', 'slow '])}{marks[status]}")
        if status == "FAILED":
            failures += [f"____________ sympy/core/tests/test_a.py:{name} ____________", "AssertionError", ""]
    footer = f"===== tests finished: {counts} passed, 1 failed, in 3.20 seconds =====\nDO *NOT* COMMIT!\n"
    return "\n".join([*lines, "                [FAIL]", *failures, footer])


DJANGO_BETWEEN = ("System check identified no issues", "Testing against Django installed in\n '/x'")


def django_lines(results: Iterable[tuple[str, str]], dice: random.Random) -> str:
    """`runtests.py --verbosity 2`: output between "..." and "ok" now and then, failures again below."""
    ends = {
        "PASSED": ["ok", *(f"{words} (0 silenced).\nok" for words in DJANGO_BETWEEN)],
        "FAILED": ["FAIL"], "ERROR": ["ERROR"], "SKIPPED": ["skipped 'no a'"], "XFAIL": ["expected failure"],
        "XPASS": ["unexpected success"],
    }  # fmt: skip
    lines, below = ["Creating test database for alias 'default'..."], []
    for name, status in results:
        if status == "missing":
            continue
        lines.append(f"{name} ... {dice.choice(ends[status])}")
        if status in ("FAILED", "ERROR"):
            below += ["=====", f"{'FAIL' if status == 'FAILED' else 'ERROR'}: {name}", "-----", "Traceback:"]
    return "\n".join([*lines, *below, "", "Ran 9 tests in 0.032s", "", "FAILED (failures=1)", ""])


def seaborn_lines(results: Iterable[tuple[str, str]], dice: random.Random) -> str:
    """Old and new forms in one log, as seaborn's parser expects either."""
    lines, counts = [], 0
    for name, status in results:
        counts += 1
        if status == "PASSED" and dice.random() < 0.5:
            lines.append(f"{name} PASSED [ 10%]")
        elif status != "missing":
            lines.append(f"{status} {name}")
    return "\n".join([*lines, f"==== {counts} passed in 0.31s ====", ""])


Style = Callable[[Iterable[tuple[str, str]], random.Random], str]
STYLES: dict[str, tuple[Style, ...]] = {
    "sympy/sympy": (sympy_lines,),
    "django/django": (django_lines,),
    "mwaskom/seaborn": (seaborn_lines, pytest_lines),
    "astropy/astropy": (pytest_lines, verbose_lines),
    "scikit-learn/scikit-learn": (pytest_lines, verbose_lines),
    "sphinx-doc/sphinx": (pytest_lines, verbose_lines),
}


def styles_of(repo: str) -> tuple[Style, ...]:
    return STYLES.get(repo, (pytest_lines,))
