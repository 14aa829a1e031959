"""The part of a log that the tests wrote: what lies between the start and the end marker, each of which must be there once.

The official harness cuts at the first text that looks like a marker, and reads the whole log where it finds no tests
between them. Both let the patch under test write its own result: the eval script shows `git diff`, and code prints. So a
marker counts here only as a whole line in the form in which bash traces or echoes it, and a second one is tampering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from swe_rl.tasks.test_command import END_MARKER, START_MARKER

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass
class Region:
    """`text` is None where the markers do not bound one region; `problems` says why."""

    text: str | None
    before: str
    started: bool = False
    ended: bool = False
    forged: bool = False
    problems: list[str] = field(default_factory=list)


def without_colour(text: str) -> str:
    """`text` without terminal escapes and carriage returns at line ends."""
    return _ANSI.sub("", text).replace("\r\n", "\n")


def find_region(log: str, markers: tuple[str, str] = (START_MARKER, END_MARKER)) -> Region:
    """Cut `log` at the markers. Offsets of the region exclude the marker lines."""
    starts, ends = (_marker_lines(log, marker) for marker in markers)
    before = log[: starts[0][0]] if starts else log
    region = Region(None, before, started=bool(starts), ended=bool(ends))
    for name, found in (("start", starts), ("end", ends)):
        if len(found) > 1:
            region.forged = True
            region.problems.append(f"{len(found)} {name} markers where one is written: part of the log is forged")
        elif not found:
            region.problems.append(f"no {name} marker: the tests {'never began' if name == 'start' else 'did not end'}")
    if region.problems:
        return region
    if ends[0][0] < starts[0][1]:
        region.forged = True
        region.problems.append("the end marker comes before the start marker")
        return region
    region.text = log[starts[0][1] : ends[0][0]]
    return region


def _marker_lines(log: str, marker: str) -> list[tuple[int, int]]:
    """Spans of lines that are the marker: traced (`+ : 'M'`), echoed (`M`), or echoed and traced (both lines, one span)."""
    text = re.escape(marker)
    # Output without a newline at its end may stand before a traced marker in the same line.
    traced = re.compile(rf"^.*?\++ (?::|echo) (['\"]?){text}\1[ \t\r]*$\n?|^{text}[ \t\r]*$\n?", re.MULTILINE)
    spans: list[tuple[int, int]] = []
    for found in traced.finditer(log):
        echoed = found.group(0).startswith(marker)
        if echoed and spans and spans[-1][1] == found.start() and "echo" in log[spans[-1][0] : spans[-1][1]]:
            spans[-1] = (spans[-1][0], found.end())
        else:
            spans.append((found.start(), found.end()))
    return spans
