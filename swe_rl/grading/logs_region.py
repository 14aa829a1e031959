"""The part of a log that the tests wrote: what lies between the start and the end marker, each of which must be there once.

The official harness cuts at the first text that looks like a marker, and reads the whole log where it finds no tests
between them. Both let the patch under test write its own result: the eval script shows `git diff`, and code prints. So a
marker counts here only as a whole line in the form in which bash traces or echoes it, and a second one is tampering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from swe_rl.tasks.test_command import END_MARKER, START_MARKER

_NEAR = 32  # characters around a marker that decide whether it is one
_TRACE = re.compile(r"\+{1,8} (?P<word>:|echo) (?P<quote>['\"]?)$")
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
    """Spans of lines that are the marker: traced (`+ : 'M'`), echoed (`M`), or echoed and traced (both lines, one span).

    Found by plain search: the log may be megabytes of text made to stall a regular expression.
    """
    spans: list[tuple[int, int]] = []
    after_echo = False  # the last span is the trace of an `echo` of the marker
    at = log.find(marker)
    while at >= 0:
        after = at + len(marker)
        rest, newline, _ = log[after : after + _NEAR].partition("\n")
        if newline or after + _NEAR >= len(log):  # else much stands behind it in its line: no marker
            end = after + len(rest) + len(newline)
            # A traced marker may follow, in its line, output that had no newline at its end.
            trace = _TRACE.search(log, max(0, at - _NEAR), at)
            if trace and rest.rstrip() == trace["quote"]:
                spans.append((trace.start(), end))
                after_echo = trace["word"] == "echo"
            elif not rest.strip() and (at == 0 or log[at - 1] == "\n"):
                if after_echo and spans[-1][1] == at:
                    spans[-1] = (spans[-1][0], end)
                else:
                    spans.append((at, end))
                after_echo = False
        at = log.find(marker, after)
    return spans
