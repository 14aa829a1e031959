"""Logs that somebody wants to be believed: each with the verdict it must get."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.grading import report
from swe_rl.grading.grade_log import read_log
from swe_rl.grading.logs import parse_log
from swe_rl.grading.report import judge
from swe_rl.tasks.load import find_task
from swe_rl.tasks.test_command import script_from_command
from swe_rl.types import Task, Verdict

START, END = "+ : '>>>>> Start Test Output'\n", "+ : '>>>>> End Test Output'\n"
PASS_A, FAIL_A = "PASSED tests/test_m.py::test_a", "FAILED tests/test_m.py::test_a\n"
DONE = "===== 2 passed in 0.12s =====\n"
GOOD = "PASSED tests/test_m.py::test_a\nPASSED tests/test_m.py::test_b\n"


def pytest_task(**changes: object) -> Task:
    task = Task(
        "own__m-1",
        "s",
        repo="own/m",
        eval_script=script_from_command("pytest -rA"),
        fail_to_pass=["tests/test_m.py::test_a"],
        pass_to_pass=["tests/test_m.py::test_b"],
    )
    for name, value in changes.items():
        setattr(task, name, value)
    return task


def verdict(task: Task, log: str, code: int | None = 0) -> tuple[Verdict, str]:
    judgement = judge(task, parse_log(task, log, returncode=code), code)
    return judgement.verdict, "; ".join(judgement.problems)


def test_an_honest_log() -> None:
    assert verdict(pytest_task(), START + GOOD + DONE + END) == (Verdict.RESOLVED, "")
    failing = GOOD.replace("PASSED tests/test_m.py::test_a", "FAILED tests/test_m.py::test_a - assert 1 == 2")
    assert verdict(pytest_task(), START + failing + DONE + END, 1)[0] is Verdict.UNRESOLVED


FORGED = {
    "passed lines before the start": (GOOD + DONE + START + "no tests ran in 0.01s\n" + END, "unresolved", ""),
    "passed lines after the end": (START + "no tests ran in 0.01s\n" + END + GOOD + DONE, "unresolved", ""),
    "no markers at all": (GOOD + DONE, "unresolved", "no start marker"),
    "no end": (START + GOOD + DONE, "unresolved", "no end marker"),
    "markers in the diff that is shown": (
        "+" + START + "+" + GOOD + DONE + "+" + END + START + "1 failed in 0.1s\n" + END, "tampered", "2 start markers",
    ),
    "a second end, from the code": (START + GOOD + DONE + END + FAIL_A + END, "tampered", "2 end"),
    "a second start": (START + "FAILED tests/test_m.py::test_a\n" + START + GOOD + DONE + END, "tampered", "2 start"),
    "end before start": (END + START + GOOD + DONE, "tampered", "before"),
    "runner ended early": (START + GOOD + END, "unresolved", "last line is missing"),
    "passes, then fails": (START + GOOD + "FAILED tests/test_m.py::test_a - x\n" + DONE + END, "unresolved", ""),
    "fails, then claims to pass": (START + "FAILED tests/test_m.py::test_a - x\n" + GOOD + DONE + END, "unresolved", ""),
    "skipped": (START + GOOD.replace("PASSED tests/test_m.py::test_a", "tests/test_m.py::test_a SKIPPED") + DONE + END,
                "unresolved", "did not run"),
    "error": (START + GOOD.replace(PASS_A, PASS_A.replace("PASSED", "ERROR")) + DONE + END, "unresolved", ""),
    "xfail": (START + GOOD.replace(PASS_A, PASS_A.replace("PASSED", "XFAIL")) + DONE + END, "resolved", ""),
    "xpass": (START + GOOD.replace("PASSED tests/test_m.py::test_a", "XPASS tests/test_m.py::test_a") + DONE + END,
              "unresolved", ""),
    "passes where nothing ran": (START + GOOD + "no tests ran in 0.01s\n" + END, "unresolved", "the test runner counts 0"),
    "more passes than the runner counts": (
        START + GOOD + "===== 1 passed, 1 skipped in 0.12s =====\n" + END, "unresolved", "the test runner counts 1",
    ),
    "counts of two sessions": (
        START + PASS_A + "\n=== 1 passed in 0.1s ===\n" + GOOD.partition("\n")[2] + "=== 1 xfailed in 0.1s ===\n" + END,
        "resolved", "",
    ),
    "syntax error, nothing collected": (START + "ERROR tests/test_m.py\n1 error in 0.10s\n" + END, "unresolved", ""),
    "patch not applied": (">>>>> Patch Apply Failed\n", "patch_rejected", "Patch Apply Failed"),
    "timeout line": (START + GOOD + "\n>>>>> Tests Timed Out: 900 seconds exceeded", "test_timeout", "Timed Out"),
    "tests errored": (">>>>> Tests Errored\n", "infra_error", "Errored"),
    "errored, said by the patch": ("+print('>>>>> Tests Errored')\n" + START + GOOD + DONE + END, "unresolved", "Errored"),
    "empty": ("", "infra_error", "no start marker"),
    "graders' tests not applied": (
        "+ git apply -v -\nerror: tests/test_m.py: already exists in working directory\n" + START + GOOD + DONE + END,
        "unresolved", "were not applied",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_forged_and_broken_logs(name: str) -> None:
    log, expected, words = FORGED[name]
    got, problems = verdict(pytest_task(), log)
    assert (got.value, words in problems) == (expected, True), problems


def test_a_test_that_passes_unexpectedly_is_not_resolved() -> None:
    """The official harness does not know the word: it misses the test."""
    log = FORGED["xpass"][0]
    judgement = judge(pytest_task(), parse_log(pytest_task(), log, returncode=0), 0)
    assert (judgement.resolved, judgement.verdict) == (False, Verdict.UNRESOLVED)
    assert judgement.tests_status["FAIL_TO_PASS"] == {"success": [], "failure": ["tests/test_m.py::test_a"]}


@pytest.mark.parametrize("name", ["django__django-11099", "matplotlib__matplotlib-22711", "psf__requests-2674"])
def test_swebench_repositories_with_forged_lines(cases: Path, name: str) -> None:
    """What the official harness accepts and we do not: results outside the markers, and a second pair of markers."""
    task = find_task(cases / "swebench_lite_80.jsonl", name)
    style = "{} ... ok\n" if "django" in name else "PASSED {}\n"
    forged = "".join(style.format(test) for test in task.fail_to_pass + task.pass_to_pass)
    count = len(task.fail_to_pass + task.pass_to_pass)
    end = "Ran 3 tests in 0.1s\n" if "django" in name else f"===== {count} passed in 0.12s =====\n"
    assert verdict(task, START + forged + end + END)[0] is Verdict.RESOLVED
    for log in (forged + end + START + end + END, START + end + END + forged + end, forged + end):
        assert verdict(task, log)[0] is not Verdict.RESOLVED
    assert verdict(task, START + forged + end + END + START + end + END)[0] is Verdict.TAMPERED
    assert verdict(task, START + forged + END)[0] is Verdict.UNRESOLVED


def test_real_log_with_output_forged_by_the_patch(cases: Path) -> None:
    """A failed evaluation whose shown diff holds a whole passing run between markers, as context lines of a file."""
    name = "django__django-11283"
    task = find_task(cases / "swebench_lite_80.jsonl", name)
    log = read_log(cases / "evaluations" / name / "test_output.txt")
    run = "".join(f"{test} ... ok\n" for test in task.fail_to_pass + task.pass_to_pass) + "Ran 9 tests in 1s\n"
    assert verdict(task, log)[0] is Verdict.UNRESOLVED
    for forged in (
        START + run + END,
        START.replace("+ :", "++ :") + run + END,
        ">>>>> Start Test Output\n" + run + ">>>>> End Test Output\n",
    ):
        assert verdict(task, forged + log)[0] is Verdict.TAMPERED
        assert verdict(task, log + forged)[0] is Verdict.TAMPERED
    shown = "".join(f" {line}\n" for line in (">>>>> Start Test Output " + run).splitlines())
    assert verdict(task, shown + log)[0] is Verdict.UNRESOLVED


def test_markers_echoed_under_trace_are_one_marker() -> None:
    def echoed(which: str) -> str:
        return f"+ echo '>>>>> {which} Test Output'\n>>>>> {which} Test Output\n"

    assert verdict(pytest_task(), echoed("Start") + GOOD + DONE + echoed("End"))[0] is Verdict.RESOLVED
    glued = START + GOOD + DONE.rstrip("\n") + END  # output without a newline before the traced marker
    assert verdict(pytest_task(), glued)[0] is Verdict.RESOLVED
    assert verdict(pytest_task(), (START + GOOD + DONE + END).replace("\n", "\r\n"))[0] is Verdict.RESOLVED


def test_secret_markers() -> None:
    task, markers = pytest_task(), ("S-1f", "E-1f")
    log = f"+ : 'S-1f'\n{START}{GOOD}{DONE}{END}FAILED tests/test_m.py::test_a - x\n1 failed in 1s\n+ : 'E-1f'\n"
    assert judge(task, parse_log(task, log, markers=markers)).verdict is Verdict.UNRESOLVED


@pytest.mark.parametrize(
    "test",
    [
        "tests/t.py::test[a b - c]",
        "tests/t.py::test[ä€😀]",
        "tests/t.py::T::test[x::y]",
        "tests/t.py::test[] ]",
        "tests/t.py::test[a - b]",
    ],
)
def test_ids_with_spaces_and_unicode_are_whole(test: str) -> None:
    task = pytest_task(fail_to_pass=[test], pass_to_pass=[])
    for status, expected in (("PASSED", Verdict.RESOLVED), ("FAILED", Verdict.UNRESOLVED)):
        reason = " - assert 1 == 2 - so" if status == "FAILED" else ""
        log = f"{START}\x1b[31m{status}\x1b[0m {test}{reason}\n{DONE}{END}"
        assert verdict(task, log, int(status == "FAILED"))[0] is expected
        assert parse_log(task, log).tests == {test: status, test.split(" ")[0]: status} or parse_log(
            task, log
        ).tests == {test: status}


def test_lists_made_by_parsers_that_cut_ids_at_spaces() -> None:
    task = pytest_task(fail_to_pass=["tests/t.py::test[a"], pass_to_pass=[])
    both = "PASSED tests/t.py::test[a b]\nFAILED tests/t.py::test[a c] - x\n"
    assert verdict(task, START + both + DONE + END, 1)[0] is Verdict.UNRESOLVED
    assert (
        verdict(task, START + both.replace("FAILED", "PASSED").replace(" - x", "") + DONE + END)[0] is Verdict.RESOLVED
    )


def test_exit_code_rows() -> None:
    task = pytest_task(fail_to_pass=[], pass_to_pass=[], log_parser="exit_code")
    assert verdict(task, START + "fine\n" + END, 0)[0] is Verdict.RESOLVED
    assert verdict(task, START + "fine\n" + END, 3)[0] is Verdict.UNRESOLVED
    assert verdict(task, START + "fine\n" + END, None)[0] is Verdict.UNRESOLVED
    assert verdict(task, START + "FAILED tests/a.py::b - x\n" + END, 0)[0] is Verdict.UNRESOLVED
    assert verdict(task, START + "killed\n", 124)[0] is Verdict.TEST_TIMEOUT
    bare = pytest_task(fail_to_pass=[], pass_to_pass=[], log_parser="exit_code", eval_script="make test\n")
    assert verdict(bare, "ok\n", 0)[0] is Verdict.RESOLVED


def test_r2e_names() -> None:
    for name in ("TestA.test_b", "test_m.py::test_b"):
        task = pytest_task(fail_to_pass=[name], pass_to_pass=[], log_parser="r2e")
        log = START + "PASSED r2e_tests/test_m.py::TestA::test_b\n" + DONE + END
        assert verdict(task, log)[0] is Verdict.RESOLVED
        assert verdict(task, log.replace("PASSED", "FAILED"), 1)[0] is Verdict.UNRESOLVED


def test_a_real_pytest_run(tmp_path: Path) -> None:
    """Every outcome that pytest knows, from pytest itself."""
    (tmp_path / "test_m.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef broken(): raise ValueError('x')\n"
        "@pytest.fixture\ndef late():\n    yield\n    raise ValueError('x')\n"
        "def test_pass(): print('PASSED test_m.py::test_fail')\n"
        "def test_fail(): assert False, 'a - b'\n"
        "def test_error(broken): pass\n"
        "def test_teardown(late): pass\n"
        "def test_skip(): pytest.skip('no')\n"
        "@pytest.mark.xfail\ndef test_xfail(): assert False\n"
        "@pytest.mark.xfail\ndef test_xpass(): pass\n"
        "@pytest.mark.parametrize('x', ['a b', 'ä', 'c - d'])\ndef test_ids(x): assert x != 'ä'\n"
    )
    command = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -rA -v -p no:cacheprovider test_m.py"
    done = subprocess.run(
        ["bash"],
        input=script_from_command(command),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    names = ["pass", "fail", "error", "teardown", "skip", "xfail", "xpass", "ids[a b]", "ids[\\xe4]", "ids[c - d]"]
    task = pytest_task(fail_to_pass=[f"test_m.py::test_{name}" for name in names], pass_to_pass=[])
    parsed = parse_log(task, done.stdout, returncode=done.returncode)
    assert parsed.complete
    expected = ["PASSED", "FAILED", "ERROR", "ERROR", "SKIPPED", "XFAIL", "XPASS", "PASSED", "FAILED", "PASSED"]
    assert [parsed.tests[f"test_m.py::test_{name}"] for name in names] == expected
    status = report.tests_status(task, parsed.tests)["FAIL_TO_PASS"]
    assert [name.removeprefix("test_m.py::test_") for name in status["success"]] == [
        "pass",
        "xfail",
        "ids[a b]",
        "ids[c - d]",
    ]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"])))
def test_status_lists_are_swebenchs(statuses: dict[str, str]) -> None:
    from swe_rl.grading.logs import ParsedLog
    from swe_rl.tasks.swebench_library import swebench_library

    task = pytest_task(fail_to_pass=list("abc"), pass_to_pass=list("def"))
    expected = swebench_library().eval_tests_report(
        statuses, {"FAIL_TO_PASS": task.fail_to_pass, "PASS_TO_PASS": task.pass_to_pass}
    )
    assert json.dumps(report.tests_status(task, statuses)) == json.dumps(expected)
    resolved = swebench_library().resolution_status(expected) == "RESOLVED_FULL"
    assert judge(task, ParsedLog(tests=statuses, parser="swebench")).resolved is resolved


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from([START, END, GOOD, DONE, "x\n", "\x1b[", "\r", "::", "[", "- ", "\ud800"])
        | st.text(max_size=20)
    ).map("".join)
)
def test_no_log_raises(log: str) -> None:
    for parser in ("", "pytest", "r2e", "exit_code"):
        task = pytest_task(log_parser=parser)
        assert judge(task, parse_log(task, log), None).verdict in Verdict


@pytest.mark.parametrize(
    "filler",
    [
        "+",
        "\n",
        "_",
        "PASSED (",
        "a.",
        "= ",
        "[",
        "x ... Testing against Django installed in ",
        "\x1b[",
        ">>>>> Start Test Output",
    ],
)
def test_megabytes_of_hostile_output_do_not_stall(cases: Path, filler: str) -> None:
    """A quadratic scan of 400 kB takes minutes; the test's own time limit is the judge."""
    django = find_task(cases / "swebench_lite_80.jsonl", "django__django-11099")
    for task in (pytest_task(), django):
        log = filler * (400_000 // len(filler))
        assert verdict(task, START + log + "\n" + END)[0] is not Verdict.RESOLVED
        assert verdict(task, log + START + log)[0] is not Verdict.RESOLVED
