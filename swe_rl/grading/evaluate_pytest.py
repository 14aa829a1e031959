"""Tests whose command we control (`log_parser="junit"`): our pytest runner's configuration, and what its report proves.

The code under test runs in pytest's own process, so nothing that process says is taken alone: the outcome of every phase of
every expected test, canaries that had to fail, the unchanged functions of pytest and unittest, the end of the session and the
exit code that the parent saw must all agree.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.grading.graders_files import graders_files
from swe_rl.grading.logs import ParsedLog
from swe_rl.types import Task, Verdict

RUNNER_FILES = ("pytest_runner.py", "pytest_witness.py")
MAX_REPORT_BYTES = 256 << 20
CANARIES = 4
PYTEST_EXITS = {
    0: "all passed",
    1: "some failed",
    2: "interrupted",
    3: "internal error",
    4: "usage error",
    5: "no tests",
}


@dataclass
class PytestPlan:
    """One run: the secret key of the report, the event token and the canaries' names; new for every grading."""

    task: Task
    key: str = field(default_factory=lambda: "swe-rl-report-" + secrets.token_hex(16))
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    canaries: list[str] = field(default_factory=lambda: [f"test_{secrets.token_hex(4)}" for _ in range(CANARIES)])

    @property
    def tests(self) -> list[str]:
        return [*self.task.fail_to_pass, *self.task.pass_to_pass]

    def config(self, workdir: str) -> bytes:
        """The runner's configuration as JSON."""
        path = [str(Path(workdir, part)) for part in self.task.env.get("PYTHONPATH", "").split(":") if part]
        files = [name for name in graders_files(self.task) if name.endswith(".py") and not name.endswith("conftest.py")]
        named = list(dict.fromkeys(test.split("::")[0] for test in self.tests))
        arguments = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-rA", "--tb=short", f"--rootdir={workdir}"]
        return json.dumps(
            {
                "key": self.key,
                "token": self.token,
                "canaries": self.canaries,
                "tests": self.tests,
                "python_path": path or [workdir],
                "arguments": [*arguments, "--", *(named or files)],
                "env": {
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # entry points of an .egg-info in the repository
                    "PYTHONPATH": ":".join(path or [workdir]),
                    "PYTHONHASHSEED": "0",
                },
            }
        ).encode()

    def read(self, log: str) -> tuple[ParsedLog, str]:
        """What the run proves, and the log without the report line."""
        parsed = ParsedLog(parser="junit", applied=True)
        lines = re.findall(rf"^{re.escape(self.key)} (\S+)$", log, re.MULTILINE)
        log = re.sub(rf"^{re.escape(self.key)} .*$\n?", "", log, flags=re.MULTILINE)
        if len(lines) != 1:
            parsed.problems.append("the test runner's report is missing: its process was ended")
            parsed.fault = Verdict.UNRESOLVED
            return parsed, log
        try:
            unpack = zlib.decompressobj()
            report = json.loads(unpack.decompress(base64.b64decode(lines[0], validate=True), MAX_REPORT_BYTES))
        except (binascii.Error, zlib.error, ValueError) as error:
            parsed.problems.append(f"the test runner's report is damaged: {error}")
            parsed.fault = Verdict.UNRESOLVED
            return parsed, log
        _Reading(self, parsed, report).judge()
        parsed.complete = not parsed.problems
        return parsed, log


class _Reading:
    """Turns one report's events into statuses and problems."""

    def __init__(self, plan: PytestPlan, parsed: ParsedLog, report: dict[str, Any]) -> None:
        self.plan, self.parsed, self.report = plan, parsed, report
        events = [event for event in report["events"] if isinstance(event, dict)]
        self.events = [event for event in events if event.get("token") == plan.token]
        if len(self.events) != len(report["events"]) or report["broken"]:
            self._tampered("the event pipe carries lines that are not the witness's")
        if [event.get("n") for event in self.events] != list(range(1, len(self.events) + 1)):
            self._tampered("events of the test run are missing, doubled or out of order")

    def _tampered(self, problem: str) -> None:
        self.parsed.problems.append(problem)
        self.parsed.fault = Verdict.TAMPERED

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("kind") == kind]

    def judge(self) -> None:
        """Fill in the parsed log. Without the witness's first word no code under test has run: then the fault is ours."""
        if not self._of("ready") and self.parsed.fault is None:
            self.parsed.problems.append(f"pytest cannot be started in the sandbox (exit code {self.report['exit']})")
            self.parsed.fault = Verdict.INFRA_ERROR
            return
        self._statuses()
        for event in self._of("meddled"):
            self._tampered(f"code under test changed the test harness: {', '.join(map(str, event['what'][:5]))}")
        self._canaries()
        self._end()

    def _statuses(self) -> None:
        phases: dict[str, dict[str, dict[str, Any]]] = {}
        for event in self._of("phase"):
            seen = phases.setdefault(str(event["test"]), {})
            if event["when"] in seen:
                self._tampered(f"{event['test']} was reported twice")
            seen[str(event["when"])] = event
        failed = {str(event["test"]) for event in self._of("part") if event["outcome"] == "failed"}
        for test, seen in phases.items():
            status = _status(seen)
            self.parsed.tests[test] = "FAILED" if status in ("PASSED", "XPASS") and test in failed else status
        for event in self._of("collect_error"):
            self.parsed.tests.setdefault(str(event["test"]), "ERROR")

    def _canaries(self) -> None:
        placed = {name for event in self._of("canaries") for name in event["placed"]}
        if not placed:
            return  # nothing was collected: then no test of the task has a status either
        outcomes = {str(event["name"]): event["outcomes"] for event in self._of("canary")}
        passed = [name for name in placed if name in outcomes and ["call", "failed"] not in outcomes[name]]
        if passed:
            self._tampered("tests that must fail did not: somebody makes tests pass")
        elif placed != set(self.plan.canaries) or set(outcomes) != placed:
            self.parsed.problems.append("the run did not come to all of its tests")

    def _end(self) -> None:
        code, ended = self.report["exit"], self._of("ended")
        if not ended:
            self.parsed.problems.append(f"pytest did not come to its end (exit code {code})")
        elif ended[-1]["code"] != code or ended[-1] is not self.events[-1]:
            self.parsed.problems.append(f"pytest ended with {ended[-1]['code']}, its process with {code}")
        elif code not in (0, 1):
            self.parsed.problems.append(f"pytest: {PYTEST_EXITS.get(code, 'unknown end')} (exit code {code})")


def _status(phases: dict[str, dict[str, Any]]) -> str:
    """pytest's outcome of a test from its phases; a skip or xfail that no mark in the tests asked for is a failure."""
    outcomes = {when: event["outcome"] for when, event in phases.items()}
    call = phases.get("call")
    if "failed" in (outcomes.get("setup"), outcomes.get("teardown")):
        return "ERROR"
    for event in phases.values():
        if event["outcome"] == "skipped":
            if event["xfail"]:
                return "XFAIL" if event["marked"] else "FAILED"
            return "SKIPPED"
    if call is None or "teardown" not in phases:
        return "ERROR"
    if call["outcome"] == "failed" or (call["raised"] and call["outcome"] == "passed"):
        return "FAILED"
    return "XPASS" if call["xfail"] else "PASSED"
