"""swebench's parsers, fed with what they can read in bounded time; and what its harness makes of a log as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from swe_rl.grading.logs_pytest import MAX_LINE, lines_with, passes_counted, pytest_finished
from swe_rl.grading.logs_region import without_colour
from swe_rl.tasks.swebench_library import swebench_library
from swe_rl.tasks.test_command import END_MARKER, START_MARKER
from swe_rl.types import Task

_DJANGO_STALL = "Testing against Django installed in"
_MOST_STALLS = 200
_PYTEST_WORDS = ("PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL")
# Without one of these a line means nothing to swebench's parser of that name (all of the line, what it stands next to and
# the line that ends a test run aside): logs of 100 MB are cut to what is read in them.
_WORDS = {
    **dict.fromkeys(("parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2"), (*_PYTEST_WORDS, " in ")),
    **dict.fromkeys(("parse_log_seaborn", "parse_log_matplotlib"), (*_PYTEST_WORDS, " in ")),
    "parse_log_sympy": ("test_", ".py:", "tests finished:"),
    "parse_log_django": ("...", "FAIL:", "ERROR:", "ok", "--version", "silenced", "Ran "),
}
# Parsers for which the end of a line matters, however long it is: XML, JSON on one line.
_WHOLE_LINES = ("parse_log_doctest", "parse_log_p5js")
# Where a log names only tests that failed, the runner's own count says that they ran: p5.js' mocha under `grunt --force`, which
# ends with 0 whatever happens, and marked's jasmine, which code under test can end with 0 in the same process.
_COUNTS = {
    "parse_log_p5js": re.compile(r"^[ \t]*[1-9]\d* passing\b", re.MULTILINE),
    "parse_log_marked": re.compile(r"^[1-9]\d* specs?, \d+ failures?", re.MULTILINE),
}
_SYMPY_COUNT = re.compile(r"^=+ tests finished: (\d+) passed", re.MULTILINE)
# The pattern of this parser for an id with a bracket is tried from each character, over each bracket, to the id's end.
_CUBIC = "parse_log_pytest_options"
_MOST_ID_STEPS = 4_000_000_000  # about fifteen seconds
# p5.js' parser looks for the end of each tag up to the log's end, and for a number behind each run of blank lines.
_TAG = re.compile(r"<\w+>")
_MOST_TAG_STEPS = 400_000_000  # tags times characters: about five seconds
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n){3,}")
_DJANGO_END = re.compile(r"^Ran \d+ tests? in ", re.MULTILINE)


class SwebenchParser:
    """swebench's parser of the task's repository. runner: "pytest", "django", "sympy" or another's name."""

    def __init__(self, task: Task) -> None:
        library = swebench_library()
        self.task = task
        self.parser: Callable[[str, Any], dict[str, str]] = library.parsers[task.repo]
        self.name = self.parser.__name__
        self.runner = "pytest" if self.reads_pytest else self.name.removeprefix("parse_log_")
        self.fail_only = task.repo in library.fail_only_repos

    @property
    def reads_pytest(self) -> bool:
        return "pytest" in self.name or self.name in ("parse_log_seaborn", "parse_log_matplotlib")

    def readable(self, text: str) -> str:
        """The lines of `text` that mean anything to the parser."""
        # Ids of pytest can be of any length, and all but one of their parsers need no more than time in proportion.
        longest = len(text) if self.reads_pytest or self.name in _WHOLE_LINES else MAX_LINE
        text = "\n".join(lines_with(text, _WORDS.get(self.name, ("",)), gap=".", longest=longest))
        return _BLANK_LINES.sub("\n\n\n", text) if self.name == "parse_log_p5js" else text

    def why_unreadable(self, text: str) -> str:
        """A reason not to give `text` to the parser at all; "" where there is none."""
        if text.count(_DJANGO_STALL) > _MOST_STALLS:  # each makes django's parser read on to the log's end
            return f"'{_DJANGO_STALL}' stands in the log more than {_MOST_STALLS} times: not read"
        if self.name == "parse_log_p5js" and len(_TAG.findall(text)) * len(text) > _MOST_TAG_STEPS:
            return f"{len(text)} characters with {len(_TAG.findall(text))} tags: not read"
        if self.name == _CUBIC and _id_steps(text) > _MOST_ID_STEPS:
            return "ids of tests with too many brackets that do not close: not read"
        return ""

    def read(self, text: str) -> dict[str, str]:
        """Status by test. Some parsers raise for lines that any code can print: such lines do not count, the others do.

        Raises whatever the parser raises for the rest: that was printed too, or the package has no parser for this instance.
        Nothing is read of a text that is `why_unreadable`.
        """
        if self.why_unreadable(text):
            return {}
        # Of a test spec, parsers ask for no more than this.
        about = SimpleNamespace(instance_id=self.task.instance_id, repo=self.task.repo, version=self.task.version)
        try:
            return self.parser(text, about)
        except Exception:
            self.parser("", about)  # a parser that cannot even read nothing stumbles at every line
            return self.parser("\n".join(line for line in text.split("\n") if not self._stumbles(about, line)), about)

    def _stumbles(self, about: object, line: str) -> bool:
        try:
            self.parser(line, about)
        except Exception:
            return True
        return False

    def passes_counted(self, text: str) -> int | None:
        """How many tests passed by the runner's own count; None where it has none that is known."""
        if self.reads_pytest:
            return passes_counted(text)
        counts = _SYMPY_COUNT.findall(without_colour(text)) if self.runner == "sympy" else []
        return sum(int(count[:9]) for count in counts) if counts else None

    def finished(self, text: str) -> bool:
        """Whether the runner's closing line is there; True for runners whose closing line is not known."""
        if "django" in self.name:
            return _DJANGO_END.search(text) is not None
        if count := _COUNTS.get(self.name):
            return count.search(without_colour(text)) is not None
        return pytest_finished(text) if self.reads_pytest else True


def _id_steps(text: str) -> int:
    steps = 0
    for line in lines_with(text, _PYTEST_WORDS, longest=len(text)):
        name = line.split(maxsplit=2)[1:2]
        if line.startswith(_PYTEST_WORDS) and name and "]" not in name[0].partition("[")[2]:
            steps += len(name[0]) ** 2 * (name[0].count("[") + 1)
    return steps


def official_statuses(parser: SwebenchParser, log: str) -> tuple[dict[str, str], bool] | None:
    """Statuses as the official harness' get_logs_eval reads them, and whether it found them outside the markers.

    It reads between the first pair of texts that are markers, and the whole log where nothing is found there. None where it
    asks for markers and finds none. Never raises: where its parser does, the harness has no report, we have no statuses.
    """
    if START_MARKER not in log or END_MARKER not in log:
        return None
    between = log.split(START_MARKER, 2)[1].split(END_MARKER, 1)[0]
    tests = _read(parser, between)
    return (tests, False) if tests else ((tests := _read(parser, log)), bool(tests))


def _read(parser: SwebenchParser, text: str) -> dict[str, str]:
    text = parser.readable(text)
    if parser.why_unreadable(text):
        return {}
    try:
        return parser.read(text)
    except Exception:  # swebench's parsers are not made for hostile text
        return {}
