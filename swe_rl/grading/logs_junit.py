"""JUnit XML as pytest writes it: status by node id, from hostile bytes (no DTD, no entities, bounded)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.parsers import expat

from swe_rl.errors import DataError
from swe_rl.grading.logs_pytest import worse

MAX_REPORT_BYTES = 64 << 20
# Characters that XML cannot hold; pytest writes them as #x1B (its junitxml.bin_xml_escape).
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\x7f")


def junit_key(node_id: str) -> tuple[str, str]:
    """(classname, name) under which pytest reports a node id (its `mangle_test_address`)."""
    address, bracket, parameters = node_id.partition("[")
    names = address.split("::")
    names[0] = re.sub(r"\.py$", "", names[0].replace("/", "."))
    names[-1] += bracket + parameters
    return ".".join(_escaped(name) for name in names[:-1]), _escaped(names[-1])


def _escaped(text: str) -> str:
    return _ILLEGAL.sub(lambda found: f"#x{ord(found.group()):0{2 if ord(found.group()) <= 0xFF else 4}X}", text)


def node_id(classname: str, name: str, file: str = "") -> str:
    """The likeliest node id of a test case: its module is what precedes the first part that starts like a class."""
    parts = classname.split(".") if classname else []
    if file:
        module = file.removesuffix(".py").replace("/", ".")
        if classname == module or classname.startswith(module + "."):
            inner = classname[len(module) + 1 :].split(".") if len(classname) > len(module) else []
            return "::".join([file, *inner, name])
    split = next((i for i, part in enumerate(parts) if part[:1].isupper()), len(parts))
    path = "/".join(parts[:split]) + ".py" if split else ""
    return "::".join(part for part in (path, *parts[split:], name) if part)


def parse_junit(xml: bytes, wanted: Iterable[str] = ()) -> dict[str, str]:
    """Status by pytest node id. `wanted`: ids that matter; they are matched exactly, others get the likeliest id.

    A case reported twice (call passed, teardown failed) has its worst status.
    Raises DataError for a report that is no whole, plain XML document of test cases.
    """
    if len(xml) > MAX_REPORT_BYTES:
        raise DataError(f"JUnit report of {len(xml)} bytes is larger than {MAX_REPORT_BYTES >> 20} MB")
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = _refuse_doctype
    try:
        parser.Parse(xml, True)
    except expat.ExpatError as error:
        raise DataError(f"JUnit report is damaged: {error}") from error
    if not reader.suites:
        raise DataError("JUnit report has no testsuite")
    known = {junit_key(name): name for name in wanted}
    tests: dict[str, str] = {}
    for classname, name, file, status in reader.cases:
        test = known.get((classname, name)) or node_id(classname, name, file)
        tests[test] = worse(tests.get(test), status)
    return tests


def _refuse_doctype(*_: object) -> None:
    raise DataError("JUnit report declares a document type, which pytest never does")


class _Reader:
    """Collects (classname, name, file, status) of each testcase element."""

    def __init__(self) -> None:
        self.cases: list[tuple[str, str, str, str]] = []
        self.suites = 0
        self._case: dict[str, str] | None = None
        self._status = "PASSED"

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in ("testsuite", "testsuites"):
            self.suites += 1
        elif tag == "testcase":
            self._case, self._status = attributes, "PASSED"
        elif self._case is not None and tag in ("failure", "error", "skipped"):
            xfail = tag == "skipped" and attributes.get("type") == "pytest.xfail"
            status = {"failure": "FAILED", "error": "ERROR", "skipped": "XFAIL" if xfail else "SKIPPED"}[tag]
            self._status = worse(None if self._status == "PASSED" else self._status, status)

    def end(self, tag: str) -> None:
        if tag == "testcase" and self._case is not None:
            case = self._case
            self.cases.append((case.get("classname", ""), case.get("name", ""), case.get("file", ""), self._status))
            self._case = None
