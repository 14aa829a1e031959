"""Required tests that a log reports as passed, and what speaks against it: swebench's parsers believe the last line, and code
can print.

A test runner says one thing of a test. Where a log says two, or where the runner is known not to have seen the test pass, the
better word was printed by the code under test, or the test did not pass as a whole; the official harness resolves such a log,
our verdict does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from swe_rl.grading.logs_pytest import lines_with
from swe_rl.grading.logs_region import without_colour

Reader = Callable[[str], dict[str, str]]
MOST_LINES = 200_000  # that say FAILED or ERROR; more of them than any test run has are not read
_BAD = ("FAILED", "ERROR")
_FILE = re.compile(r"^(?:FAILED|ERROR) ([^\s:]+)(?: - .*)?$")  # a module that could not be collected
_DJANGO_HEAD = re.compile(r"^(?:FAIL|ERROR): (.+)$")
_DJANGO_LINE = re.compile(r"^(.+?) \.\.\. .*(?:FAIL|ERROR)$")
_DJANGO_SKIP = re.compile(
    r"^(\w+ \(\S+\)) \.\.\. skipped\b"
)  # other names are first lines of docstrings: several tests may share one
_SYMPY_LINE = re.compile(r"^(test_\S+) .*\b[FE]$")
_SYMPY_HEAD = re.compile(r"^_+ \S+\.py:(\S+) _+$")


def contradicted(
    read: Reader, text: str, passed: Iterable[str], *, runner: str, failures: Iterable[str] = ()
) -> list[str]:
    """Which of `passed` (ids that `read` found to have passed in `text`) failed as well; empty where all agrees.

    runner: "pytest", "django" or "sympy"; any other finds nothing. failures: ids that pytest itself is known to have failed.
    """
    if runner == "pytest":
        bad = _pytest_failures(read, text, failures)
        return [name for name in passed if name in bad or name.split("::")[0] in bad]
    if runner == "sympy":
        bad = _found(text, (" F", " E", "_ "), (_SYMPY_LINE, _SYMPY_HEAD))
        return [name for name in passed if name in bad]
    if runner == "django":
        bad = _found(text, ("FAIL", "ERROR", "skipped"), (_DJANGO_LINE, _DJANGO_HEAD, _DJANGO_SKIP))
        # Of a subtest the head names the test first, then its parameters.
        whole = bad | {name.partition(") ")[0] + ")" for name in bad if ") " in name}
        return [name for name in passed if name in whole]
    return []


def unseen(read: Reader, passed: Iterable[str], seen: Iterable[str]) -> list[str]:
    """Which of `passed` pytest did not see pass. seen: the ids that it did, as it writes them."""
    lines = []
    for name in seen:
        # In its summary and behind its progress, as the parser may know only one form; escaped where the terminal is ASCII;
        # and as versions before 4 show ids.
        for one in {name, name.encode("unicode-escape").decode(), name.replace("::()", "")}:
            lines += [f"PASSED {one}", f"{one} PASSED"]
    ran = read("\n".join(lines)).keys()
    return [name for name in passed if name.partition(" <- ")[0] not in ran]  # "<-": inherited from another file


def _pytest_failures(read: Reader, text: str, failures: Iterable[str]) -> Collection[str]:
    bad: set[str] = set(failures)
    lines = [f"FAILED {name}" for name in bad]
    for count, line in enumerate(lines_with(text, _BAD, longest=len(text))):
        if count == MOST_LINES:
            break
        lines.append(line)
    for line in dict.fromkeys(lines):
        bad.update(name for name, status in read(line).items() if status in _BAD)
        if found := _FILE.match(without_colour(line).rstrip()):
            bad.add(found[1])
    return bad


def _found(text: str, words: Iterable[str], patterns: Iterable[re.Pattern[str]]) -> set[str]:
    found = set()
    for line in lines_with(text, words):
        for pattern in patterns:
            if match := pattern.match(line.strip()):
                found.add(match[1].strip())
    return found
