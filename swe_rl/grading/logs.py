"""From the log of an eval script to the status of each test, believing only what the test runner itself can have written.

Repositories that the `swebench` package knows are read by its parsers; others by pytest's summary; see `Task.log_parser`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from swe_rl.errors import UsageError
from swe_rl.grading.logs_contradictions import contradicted
from swe_rl.grading.logs_pytest import lines_with, parse_pytest, parse_r2e, pytest_finished
from swe_rl.grading.logs_region import find_region, without_colour
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
_DJANGO_STALL = "Testing against Django installed in"
_MOST_STALLS = 200
_PYTEST_WORDS = ("PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL")
# Without one of these a line means nothing to swebench's parser of that name (all of the line, what it stands next to and
# the line that ends a test run aside): logs of 100 MB are cut to what is read in them.
_WORDS = {
    **dict.fromkeys(("parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2"), (*_PYTEST_WORDS, " in ")),
    **dict.fromkeys(("parse_log_seaborn", "parse_log_matplotlib"), (*_PYTEST_WORDS, " in ")),
    "parse_log_sympy": ("test_", ".py:"),
    "parse_log_django": ("...", "FAIL:", "ERROR:", "ok", "--version", "silenced", "Ran "),
}
_DJANGO_END = re.compile(r"^Ran \d+ tests? in ", re.MULTILINE)


@dataclass
class ParsedLog:
    """What a log says. `complete`: the test runner came to its end between the markers, and nothing is forged.

    problems: reasons not to believe a good result (one line each). fault: the verdict that the log forces whatever the
    tests say. applied: what SWE-bench's report calls `patch_successfully_applied`.
    """

    tests: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    problems: list[str] = field(default_factory=list)
    fault: Verdict | None = None
    applied: bool = False
    parser: str = ""
    pytest: bool = False  # the runner is pytest
    fail_only: bool = False  # swebench's FAIL_ONLY_REPOS: a test counts as failed only where the log says so


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
        return _is_pytest(swebench_library().parsers[task.repo].__name__)
    return name in ("pytest", "r2e")


def _is_pytest(parser_name: str) -> bool:
    return "pytest" in parser_name or parser_name in ("parse_log_seaborn", "parse_log_matplotlib")


def parse_log(
    task: Task,
    log: str,
    *,
    returncode: int | None = None,
    markers: tuple[str, str] = (START_MARKER, END_MARKER),
    harness: bool = True,
    failures: Iterable[str] = (),
) -> ParsedLog:
    """Read the log of `task`'s eval script.

    returncode: the script's exit code, None where it is not known. markers: start and end marker of the script; they are
    required unless the task's own script writes none. harness: the log comes from a harness that writes its own faults into
    it and ends with code 124 when time is up; else such lines are the tests'. failures: ids that pytest is known to have
    failed, whatever the log says. Never raises for anything a log may hold; raises UsageError where
    the task needs the swebench package and it is not installed.
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
    text, before = _bounded(task, log, returncode, markers, parsed)
    if text is None:
        return parsed
    parsed.applied = True
    _test_patch_applied(before, parsed)
    _read_tests(task, text, parsed, failures)
    parsed.complete = not parsed.problems
    return parsed


def _harness_lines(log: str, parsed: ParsedLog) -> None:
    for line, verdict in _HARNESS_LINES.items():
        if line not in log:
            continue
        own = re.search(rf"^{re.escape(line)}", log, re.MULTILINE) is not None
        parsed.problems.append(f"the log says '{line.lstrip('> ')}'")
        # Inside other text the words may be the patch's: they cannot buy a retry, but the official harness stops too.
        parsed.fault = parsed.fault or (verdict if own else Verdict.UNRESOLVED)


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


def _read_tests(task: Task, text: str, parsed: ParsedLog, failures: Iterable[str]) -> None:
    wanted = [*task.fail_to_pass, *task.pass_to_pass]
    finished: Callable[[str], bool] = pytest_finished
    runner = "pytest"
    if parsed.parser == "swebench":
        library = swebench_library()
        parser = library.parsers[task.repo]
        name = parser.__name__
        text = "\n".join(lines_with(text, _WORDS.get(name, ("",)), gap="."))
        if text.count(_DJANGO_STALL) > _MOST_STALLS:  # each makes django's parser read on to the log's end
            parsed.problems.append(f"'{_DJANGO_STALL}' stands in the log more than {_MOST_STALLS} times: not read")
            return
        read: Callable[[str], dict[str, str]] = functools.partial(_statuses, parser, task)
        runner = "pytest" if _is_pytest(name) else name.removeprefix("parse_log_")
        finished = functools.partial(_finished, name)
        parsed.fail_only = task.repo in library.fail_only_repos
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
    passed = [name for name in wanted if parsed.tests.get(name) in ("PASSED", "XFAIL")]
    if failed := contradicted(read, text, passed, runner=runner, failures=failures):
        parsed.problems.append(f"{len(failed)} required tests are reported as failed and as passed: {failed[0]}")


def _statuses(parser: Callable[[str, Any], dict[str, str]], task: Task, text: str) -> dict[str, str]:
    """What swebench's parser reads. Some raise for lines that any code can print: such lines do not count, the others do.

    Raises whatever the parser raises for the rest: that was printed too, or the package has no parser for this instance.
    """
    # Of a test spec, parsers ask for no more than this.
    about = SimpleNamespace(instance_id=task.instance_id, repo=task.repo, version=task.version)
    try:
        return parser(text, about)
    except Exception:
        parser("", about)  # a parser that cannot even read nothing stumbles at every line
        return parser("\n".join(line for line in text.split("\n") if not _stumbles(parser, about, line)), about)


def _stumbles(parser: Callable[[str, Any], dict[str, str]], about: object, line: str) -> bool:
    try:
        parser(line, about)
    except Exception:
        return True
    return False


def _finished(parser_name: str, text: str) -> bool:
    """Whether the runner's closing line is there; True for runners whose closing line is not known."""
    if "django" in parser_name:
        return _DJANGO_END.search(text) is not None
    if _is_pytest(parser_name):
        return pytest_finished(text)
    return True
