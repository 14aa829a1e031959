"""pytest's own words: the summary of `-rA`, lines of `-v`, and whether the runner came to its end.

Used for tasks of repositories that the `swebench` package has no parser for. Ids are kept whole (spaces, unicode,
brackets); lists made by parsers that cut ids at the first space are matched too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from swe_rl.grading.logs_region import without_colour

STATUSES = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")
_SUMMARY = re.compile(rf"^({'|'.join(STATUSES)}) (\S.*)$")
_VERBOSE = re.compile(rf"^(\S+\.\w+::.*?) ({'|'.join(STATUSES)})(?: \(.*\))?(?:\s+\[\s*\d+%\])?$")
_XDIST = re.compile(rf"^\[gw\d+\] (?:\[\s*\d+%\] )?({'|'.join(STATUSES)}) (\S.*)$")
_END = re.compile(
    r"=*[ ]*(?:no tests ran|\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)\b).* in [\d.:]+ ?s"
)
_COUNT = re.compile(r"\b(\d+) (?:passed|xfailed)\b")
MAX_LINE = 5000  # characters of a line that are read: output is hostile, and regular expressions can be stalled
_RANK = {"PASSED": 0, "XFAIL": 0, "XPASS": 1, "SKIPPED": 2, "FAILED": 3, "ERROR": 4}


def pytest_finished(text: str) -> bool:
    """Whether pytest's last line (`3 passed in 0.12s`) is there."""
    return any(True for _ in _closing_lines(text))


def passes_counted(text: str) -> int:
    """How many tests passed or failed as expected by pytest's own count: the sum over the last lines of its sessions."""
    return sum(int(count[:9]) for line in _closing_lines(text) for count in _COUNT.findall(line))


def _closing_lines(text: str) -> Iterator[str]:
    lines = (without_colour(line) for line in lines_with(text, (" in ",)))
    return (found[0] for line in lines if (found := _END.match(line)))


def lines_with(text: str, words: Iterable[str], gap: str | None = None, *, longest: int = MAX_LINE) -> Iterator[str]:
    """The lines of `text` that hold one of `words`, cut at `longest` characters, without a list of all lines (logs are large).

    gap: given once for each run of lines that is left out.
    """
    words = tuple(words)
    at, gone = 0, False
    while at <= len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at : min(end, at + longest)]
        at = end + 1
        if any(word in line for word in words):
            if gone and gap is not None:
                yield gap
            gone = False
            yield line
        else:
            gone = True


def worse(one: str | None, other: str) -> str:
    """The status that says less for the patch: a test reported twice has its worst."""
    return other if one is None or _RANK.get(other, 5) > _RANK.get(one, 5) else one


def parse_pytest(text: str, wanted: Iterable[str] = ()) -> dict[str, str]:
    """Status by test id. `wanted`: the ids that matter, which settles where an id ends and its reason begins."""
    names = set(wanted)
    tests: dict[str, str] = {}
    for line in lines_with(text, ("::",)):
        status, rest = _status_line(without_colour(line).rstrip())
        if not status:
            continue
        name = _test_id(rest, status, names)
        tests[name] = worse(tests.get(name), status)
        first = name.split(" ", 1)[0]
        if first != name and first in names:  # the list was made by a parser that cuts ids at spaces
            tests[first] = worse(tests.get(first), status)
    return tests


def _status_line(line: str) -> tuple[str, str]:
    if found := _SUMMARY.match(line) or _XDIST.match(line):
        return found.group(1), found.group(2)
    if found := _VERBOSE.match(line):
        return found.group(2), found.group(1)
    return "", ""


def _test_id(rest: str, status: str, names: set[str]) -> str:
    if rest in names or status == "PASSED":
        return rest
    pieces = rest.split(" - ")
    heads = [" - ".join(pieces[:n]) for n in range(1, len(pieces) + 1)]
    known = [head for head in heads if head in names]
    if known:
        return known[-1]
    for head in heads:
        if head.count("[") <= head.count("]"):
            return head
    return heads[0]


def parse_r2e(text: str, wanted: Iterable[str]) -> dict[str, str]:
    """R2E-Gym's short names: `Class.test` (its data sets) or `file.py::test`, from pytest's summary lines."""
    by_file = any("::" in name for name in wanted)
    tests: dict[str, str] = {}
    for name, status in parse_pytest(text).items():
        path, *inner = name.split("::")
        short = f"{path.rsplit('/', 1)[-1]}::{inner[-1]}" if by_file and inner else ".".join(inner)
        tests[short] = worse(tests.get(short), status)
    return tests
