"""From the log of an eval script to the status of each test, believing only what the test runner itself can have written.

Repositories that the `swebench` package knows are read by its parsers; others by pytest's summary; see `Task.log_parser`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from swe_rl.errors import UsageError
from swe_rl.grading.logs_contradictions import contradicted, unseen
from swe_rl.grading.logs_pytest import parse_pytest, parse_r2e, passes_counted, pytest_finished
from swe_rl.grading.logs_region import find_region, without_colour
from swe_rl.grading.logs_swebench import SwebenchParser, official_statuses
from swe_rl.tasks.swebench_library import swebench_library
from swe_rl.tasks.test_command import END_MARKER, START_MARKER
from swe_rl.types import Task, Verdict

# Lines that the official harness writes into a log, and what they mean (swebench.harness.constants)
_HARNESS_LINES = {
    ">>>>> Patch Apply Failed": Verdict.PATCH_REJECTED,
    ">>>>> Tests Timed Out": Verdict.TEST_TIMEOUT,
    ">>>>> Reset Failed": Verdict.INFRA_ERROR,
    ">>>>> Tests Errored": Verdict.INFRA_ERROR,
}
_APPLY_TRACE = re.compile(r"^\++ git apply .*$", re.MULTILINE)
_APPLY_ERROR = re.compile(
    r"^error: (?:patch failed|.*(?:does not apply|already exists|does not exist|No such file)).*$", re.MULTILINE
)
# What the harness of swebench 4 writes behind a log whose script ran out of time
_OUT_OF_TIME = re.compile(r"\n\nTimeout error: \d+ seconds exceeded\.\s*\Z")


@dataclass
class ParsedLog:
    """What a log says. `complete`: the test runner came to its end between the markers, and nothing is forged.

    problems: reasons not to believe a good result (one line each). fault: the verdict that the log forces whatever the
    tests say. applied: what SWE-bench's report calls `patch_successfully_applied`. official: the statuses that its harness
    reads in a log of its own; None where the log is no such log. They may be forged, so no verdict comes from them.
    """

    tests: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    problems: list[str] = field(default_factory=list)
    fault: Verdict | None = None
    applied: bool = False
    parser: str = ""
    pytest: bool = False  # the runner is pytest
    fail_only: bool = False  # swebench's FAIL_ONLY_REPOS: a test counts as failed only where the log says so
    official: dict[str, str] | None = None


def parser_of(task: Task) -> str:
    """The name of the parser that reads the task's logs: "swebench", "pytest", "junit", "r2e" or "exit_code"."""
    if task.log_parser:
        return task.log_parser
    if not task.fail_to_pass and not task.pass_to_pass:
        return "exit_code"
    try:
        return "swebench" if task.repo in swebench_library().parsers else "pytest"
    except UsageError:
        if task.eval_script:  # without the package, pytest's summary can still be read
            return "pytest"
        raise


def reads_pytest(task: Task) -> bool:
    """Whether the parser of the task's logs reads what pytest prints."""
    name = parser_of(task)
    if name == "swebench":
        return SwebenchParser(task).reads_pytest
    return name in ("pytest", "r2e")


def parse_log(
    task: Task,
    log: str,
    *,
    returncode: int | None = None,
    markers: tuple[str, str] = (START_MARKER, END_MARKER),
    harness: bool = True,
    failures: Iterable[str] = (),
    passes: Iterable[str] | None = None,
    xfails: Iterable[str] = (),
) -> ParsedLog:
    """Read the log of `task`'s eval script.

    returncode: the script's exit code, None where it is not known. markers: start and end marker of the script; they are
    required unless the task's own script writes none. harness: the log comes from a harness that writes its own faults into
    it and ends with code 124 when time is up; else such lines are the tests'. failures: ids that pytest is known to have
    failed, whatever the log says. passes: those that it has seen pass; None where that is not known. xfails: those that
    failed as expected, by nothing that the tests say: such a test may have passed before, but shows no fix. Never raises for
    anything a log may hold; raises UsageError where the task needs the swebench package and it is not installed.
    """
    parser = parser_of(task)
    parsed = ParsedLog(parser=parser)
    # swebench's parsers see what Python's text mode makes of a file: every line end is a newline.
    log = log.replace("\r\n", "\n").replace("\r", "\n") if parser == "swebench" else without_colour(log)
    if harness and returncode == 124:
        parsed.fault = Verdict.TEST_TIMEOUT
        parsed.problems.append("the tests ran into their time limit (exit code 124)")
    if harness:
        _harness_lines(log, parsed)
    if harness and parsed.fault is None and _OUT_OF_TIME.search(log, max(0, len(log) - 200)):
        # Whatever the log says of the tests: who never lets them end may have printed it.
        parsed.fault = Verdict.TEST_TIMEOUT
        parsed.problems.append("the log ends with the harness' words that the time was up")
    if harness and (parser == "swebench" or (parser == "exit_code" and _official_repo(task))):
        _officially(task, log, parsed)
    text, before = _bounded(task, log, returncode, markers, parsed)
    if text is None:
        return parsed
    parsed.applied = True
    _test_patch_applied(before, parsed)
    _read_tests(task, text, parsed, _Seen(tuple(failures), None if passes is None else tuple(passes), tuple(xfails)))
    parsed.complete = not parsed.problems
    return parsed


@dataclass(frozen=True)
class _Seen:
    """What pytest's own plugin has seen; see `parse_log`."""

    failures: tuple[str, ...]
    passes: tuple[str, ...] | None
    xfails: tuple[str, ...]


def _official_repo(task: Task) -> bool:
    """Whether the official harness reads the task's logs although our parser is not swebench's: it names no required test."""
    try:
        return not task.log_parser and task.repo in swebench_library().parsers
    except UsageError:
        return False


def _harness_lines(log: str, parsed: ParsedLog) -> None:
    for line, verdict in _HARNESS_LINES.items():
        if line not in log:
            continue
        own = re.search(rf"^{re.escape(line)}", log, re.MULTILINE) is not None
        parsed.problems.append(f"the log says '{line.lstrip('> ')}'")
        # Inside other text the words may be the patch's: they cannot buy a retry, but the official harness stops too.
        parsed.fault = parsed.fault or (verdict if own else Verdict.UNRESOLVED)


def _officially(task: Task, log: str, parsed: ParsedLog) -> None:
    if any(line in log for line in _HARNESS_LINES):
        return  # the official harness reads no more of it
    reader = SwebenchParser(task)
    read = official_statuses(reader, log)
    if read is None:
        return
    parsed.official, outside = read
    parsed.applied, parsed.fail_only = True, reader.fail_only
    if outside and not reader.fail_only:
        parsed.problems.append("results outside the markers, none between them: anybody can have written them")


def _bounded(
    task: Task, log: str, returncode: int | None, markers: tuple[str, str], parsed: ParsedLog
) -> tuple[str | None, str]:
    """The text of the tests and what came before it; None (and a fault) where the log has no trustworthy region."""
    if parsed.fault and parsed.fault is not Verdict.TEST_TIMEOUT:
        return None, log
    if task.eval_script and markers[0] not in task.eval_script and markers[0] not in log:
        return log, ""
    region = find_region(log, markers)
    parsed.problems += region.problems
    if region.text is None:
        if region.forged:
            parsed.fault = Verdict.TAMPERED
        elif parsed.fault is None:
            # A script that ended by itself had its chance; a log that just stops says nothing about the patch.
            cut = returncode is None or not log.strip()
            parsed.fault = Verdict.INFRA_ERROR if cut else Verdict.UNRESOLVED
    return (None if parsed.fault else region.text), region.before


def _test_patch_applied(before: str, parsed: ParsedLog) -> None:
    traces = list(_APPLY_TRACE.finditer(before))
    error = _APPLY_ERROR.search(before, traces[-1].end()) if traces else None
    if error:
        parsed.problems.append(f"the graders' tests were not applied ({error.group(0)})")


def _read_tests(task: Task, text: str, parsed: ParsedLog, seen: _Seen) -> None:
    wanted = [*task.fail_to_pass, *task.pass_to_pass]
    finished: Callable[[str], bool] = pytest_finished
    counted: Callable[[str], int | None] = passes_counted
    runner = "pytest"
    if parsed.parser == "swebench":
        swebench = SwebenchParser(task)
        text = swebench.readable(text)
        if reason := swebench.why_unreadable(text):
            parsed.problems.append(reason)
            return
        read: Callable[[str], dict[str, str]] = swebench.read
        runner, finished, counted = swebench.runner, swebench.finished, swebench.passes_counted
        parsed.fail_only = swebench.fail_only
    elif parsed.parser == "r2e":
        read = functools.partial(parse_r2e, wanted=wanted)
    elif parsed.parser == "exit_code":
        read, runner, finished = parse_pytest, "", lambda text: True
    else:
        read = functools.partial(parse_pytest, wanted=wanted)
    parsed.pytest = runner == "pytest"
    try:
        parsed.tests = read(text)
    except Exception as error:  # swebench's parsers are not made for hostile text
        parsed.problems.append(f"log cannot be read: the parser of {task.repo} ends with {error!r:.200}")
        return
    if not finished(text):
        parsed.problems.append("the test runner's last line is missing: it did not come to its end")
    passed = [name for name in dict.fromkeys(wanted) if parsed.tests.get(name) in ("PASSED", "XFAIL")]
    if failed := contradicted(read, text, passed, runner=runner, failures=seen.failures):
        parsed.problems.append(f"{len(failed)} required tests are reported as failed and as passed: {failed[0]}")
    # Ids cut at a space stand for several tests: there the runner counts more, never less.
    named = [name for name in passed if "::" in name or runner == "sympy"]
    count = counted(text) if named else None
    if count is not None and count < len(named):
        parsed.problems.append(f"{len(named)} required tests are reported as passed, the test runner counts {count}")
    if seen.passes is not None:
        parsed.problems += _not_seen(task, read, passed, seen.passes, seen.xfails)


def _not_seen(
    task: Task,
    read: Callable[[str], dict[str, str]],
    passed: list[str],
    passes: tuple[str, ...],
    xfails: tuple[str, ...],
) -> list[str]:
    before = {*task.pass_to_pass} - {*task.fail_to_pass}
    ghosts = unseen(read, [name for name in passed if name not in before], passes)
    ghosts += unseen(read, [name for name in passed if name in before], (*passes, *xfails))
    return (
        [f"{len(ghosts)} required tests are reported as passed, and pytest saw no such pass: {ghosts[0]}"]
        if ghosts
        else []
    )
