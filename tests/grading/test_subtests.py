"""Tests whose parts are reported on their own, as pytest 9 does for `subTest`: with the pytest that is installed here."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.grading.evaluate_pytest import RUNNER_FILES, PytestPlan
from swe_rl.types import Task

TESTS = """
import unittest
import pytest
from mod import one


class TestParts(unittest.TestCase):
    def test_all(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertEqual(one(), 1)

    def test_some(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertLess(number, 1 + one())

    def test_skips(self):
        with self.subTest("a"):
            self.skipTest("not here")
        self.assertEqual(one(), 1)


def test_fixture(subtests):
    with subtests.test("a"):
        assert one() == 1
    with subtests.test("b"):
        assert one() == 1


def test_own_report(request):
    # Code under test that reports for itself: a pass is no outcome of the test.
    from _pytest.runner import CallInfo

    call = CallInfo.from_call(lambda: None, "call")
    request.node.ihook.pytest_runtest_makereport(item=request.node, call=call)
    assert one() == 2
"""
IDS = ["TestParts::test_all", "TestParts::test_some", "TestParts::test_skips", "test_fixture", "test_own_report"]


def statuses(folder: Path) -> tuple[dict[str, str], list[str]]:
    task = replace(Task("x", "y"), fail_to_pass=[f"test_mod.py::{name}" for name in IDS], log_parser="junit")
    plan = PytestPlan(task)
    ours = folder / "ours"
    ours.mkdir()
    for name in RUNNER_FILES:
        (ours / name).write_bytes((Path(sys.modules[PytestPlan.__module__].__file__).parent / name).read_bytes())
    (ours / "config.json").write_bytes(plan.config(str(folder)))
    command = [sys.executable, "-I", str(ours / "pytest_runner.py"), str(ours / "config.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    parsed, log = plan.read(done.stdout)
    assert parsed.tests, log + done.stderr
    return {test.partition("::")[2]: status for test, status in parsed.tests.items()}, parsed.problems


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="this pytest reports no parts")
def test_a_part_can_fail_its_test_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_mod.py").write_text(TESTS)
    found, problems = statuses(tmp_path)
    assert problems == []
    assert found == {
        "TestParts::test_all": "PASSED",
        "TestParts::test_some": "FAILED",
        "TestParts::test_skips": "PASSED",
        "test_fixture": "PASSED",
        "test_own_report": "FAILED",
    }
