"""From parsed tests to a verdict, and SWE-bench's report of it.

`resolved` is what the official harness decides on the same statuses; `verdict` asks for more: a believable log, no required
test skipped, an exit code that agrees. Where they differ, `problems` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swe_rl.grading.logs import ParsedLog
from swe_rl.types import Task, Verdict

_GROUPS = ("FAIL_TO_PASS", "PASS_TO_PASS", "FAIL_TO_FAIL", "PASS_TO_FAIL")
_GOOD = ("PASSED", "XFAIL")
_BAD = ("FAILED", "ERROR")


@dataclass
class Judgement:
    """A verdict with its reasons. tests_status: SWE-bench's lists; empty where the log could not be read."""

    verdict: Verdict
    resolved: bool
    tests_status: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def tests_status(task: Task, tests: Mapping[str, str], *, fail_only: bool = False) -> dict[str, dict[str, list[str]]]:
    """Required tests by success and failure, as swebench's `get_eval_tests_report` counts them.

    PASSED and XFAIL are successes; FAILED, ERROR and missing are failures; skipped tests are in neither list. XPASS is a
    failure: its parsers do not know the word, so that such a test is missing.
    """
    wanted = {"FAIL_TO_PASS": task.fail_to_pass, "PASS_TO_PASS": task.pass_to_pass}
    return {group: _split(wanted.get(group, ()), tests, fail_only) for group in _GROUPS}


def _split(names: Iterable[str], tests: Mapping[str, str], fail_only: bool) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {"success": [], "failure": []}
    for name in names:
        status = tests.get(name)
        if fail_only:
            lists["failure" if status == "FAILED" else "success"].append(name)
        elif status in _GOOD:
            lists["success"].append(name)
        elif status in (None, "XPASS", *_BAD):
            lists["failure"].append(name)
    return lists


def judge(task: Task, parsed: ParsedLog, returncode: int | None = None) -> Judgement:
    """The verdict on one parsed log. `returncode`: the eval script's exit code, None where it is not known."""
    if parsed.fault is not None and not parsed.applied:
        return Judgement(parsed.fault, False, problems=list(parsed.problems))
    problems = list(parsed.problems)
    status = tests_status(task, parsed.tests, fail_only=parsed.fail_only)
    if parsed.parser == "exit_code":
        problems += _exit_code_only(parsed, returncode)
        believed = not problems
    else:
        believed = _all_passed(status)
        problems += _disagreements(task, parsed, returncode, believed)
    verdict = parsed.fault or (Verdict.RESOLVED if believed and not problems else Verdict.UNRESOLVED)
    if parsed.official is None:
        return Judgement(verdict, believed, status, problems)
    official = tests_status(task, parsed.official, fail_only=parsed.fail_only)
    return Judgement(verdict, _all_passed(official), official, problems)


def _all_passed(status: Mapping[str, Mapping[str, list[str]]]) -> bool:
    return not any(lists["failure"] for lists in status.values())


def _exit_code_only(parsed: ParsedLog, returncode: int | None) -> list[str]:
    if returncode is None:
        return ["the task is judged by its script's exit code, which is not known"]
    if returncode != 0:
        return [f"the eval script ended with exit code {returncode}"]
    failed = [name for name, status in parsed.tests.items() if status in _BAD]
    return [f"exit code 0, but the log reports {len(failed)} failed tests ({failed[0]})"] if failed else []


def _disagreements(task: Task, parsed: ParsedLog, returncode: int | None, resolved: bool) -> list[str]:
    """Reasons not to believe that all required tests passed; empty where they did not."""
    if not resolved:
        return []
    found = []
    required = [*task.fail_to_pass, *task.pass_to_pass]
    if parsed.fail_only:
        # Such a log names the tests that failed and no other: without any of them, only the exit code tells that tests ran.
        if returncode is None:
            found.append("the log names only tests that failed, and the eval script's exit code is not known")
        elif returncode != 0:
            found.append(
                f"no required test is said to have failed, but the eval script ended with exit code {returncode}"
            )
    elif not parsed.tests:
        found.append("the log reports no test at all")
    skipped = [name for name in required if parsed.tests.get(name) not in (*_GOOD, *_BAD, None)]
    if skipped:
        found.append(f"{len(skipped)} required tests did not run: {skipped[0]} is {parsed.tests[skipped[0]]}")
    failed = any(status in _BAD for status in parsed.tests.values())
    if returncode not in (None, 0) and not failed and not parsed.fail_only:
        found.append(f"every reported test passed, but the eval script ended with exit code {returncode}")
    elif parsed.pytest and returncode not in (
        None,
        0,
        1,
    ):  # 1: tests failed; with others the run did not take place as a whole
        found.append(f"the eval script ended with exit code {returncode}, which pytest has not for failed tests")
    return found


def report_entry(judgement: Judgement, parsed: ParsedLog, *, patch_exists: bool = True) -> dict[str, Any]:
    """One instance's value in SWE-bench's report, with our `verdict` and `problems` added."""
    entry: dict[str, Any] = {
        "patch_is_None": not patch_exists,
        "patch_exists": patch_exists,
        "patch_successfully_applied": parsed.applied,
        "resolved": judgement.resolved,
    }
    if judgement.tests_status:
        entry["tests_status"] = judgement.tests_status
    return {**entry, "verdict": judgement.verdict.value, "problems": judgement.problems}
