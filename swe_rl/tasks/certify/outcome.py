"""What the gradings of one task say about the task: certified, flaky, broken, or unknown (nobody's fault)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.types import Task, Verdict

CERTIFIED, FLAKY, BROKEN, UNKNOWN = "certified", "flaky", "broken", "unknown"
_PASSED = ("PASSED", "XFAIL")
NAMED_TESTS = 20  # tests listed by name in an outcome


@dataclass
class Run:
    """One grading of the gold or the empty patch."""

    verdict: str
    tests: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""


@dataclass
class Outcome:
    """The judgement on one task. seconds: median of one gold grading. tests: those that are flaky or stand in the way."""

    instance_id: str
    status: str
    reason: str = ""
    tests: list[str] = field(default_factory=list)
    gold: list[str] = field(default_factory=list)  # verdicts of the gold runs
    empty: list[str] = field(default_factory=list)
    seconds: float = 0.0
    image_digest: str = ""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Outcome:
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def judge_runs(task: Task, gold: Sequence[Run], empty: Sequence[Run], image_digest: str = "") -> Outcome:
    """Classify a task by its runs. Infra errors among them make it `unknown`: they say nothing about the task."""
    outcome = Outcome(
        task.instance_id,
        UNKNOWN,
        gold=[run.verdict for run in gold],
        empty=[run.verdict for run in empty],
        seconds=sorted(run.seconds for run in gold)[len(gold) // 2] if gold else 0.0,
        image_digest=image_digest,
    )
    lost = next((run for run in (*gold, *empty) if run.verdict == Verdict.INFRA_ERROR), None)
    unsteady = unsteady_tests(task, gold)
    if lost is not None:
        outcome.reason = f"a grading was lost: {lost.reason or 'infra_error'}"
    elif unsteady or len({run.verdict for run in gold}) > 1:
        outcome.status = FLAKY
        outcome.tests = unsteady[:NAMED_TESTS]
        outcome.reason = f"the gold patch was {_tally(outcome.gold)}" + (
            f"; {len(unsteady)} tests differ between runs" if unsteady else ""
        )
    elif gold[0].verdict != Verdict.RESOLVED:
        outcome.status = BROKEN
        outcome.tests = failing_tests(task, gold[0])[:NAMED_TESTS]
        outcome.reason = f"the gold patch is {gold[0].verdict}: {gold[0].reason or _first(outcome.tests)}"
    elif any(run.verdict == Verdict.RESOLVED for run in empty):
        outcome.status = BROKEN
        outcome.reason = "the tests pass without any fix"
    else:
        outcome.status = CERTIFIED
        _note_weak_tests(task, empty, outcome)
    return outcome


def unsteady_tests(task: Task, runs: Sequence[Run]) -> list[str]:
    """Required tests whose status differs between the runs."""
    required = dict.fromkeys([*task.fail_to_pass, *task.pass_to_pass])
    return [name for name in required if len({run.tests.get(name, "missing") for run in runs}) > 1]


def failing_tests(task: Task, run: Run) -> list[str]:
    """Required tests that did not pass, with their status."""
    required = dict.fromkeys([*task.fail_to_pass, *task.pass_to_pass])
    return [f"{name} ({run.tests.get(name, 'missing')})" for name in required if run.tests.get(name) not in _PASSED]


def _note_weak_tests(task: Task, empty: Sequence[Run], outcome: Outcome) -> None:
    for run in empty:
        weak = [name for name in task.fail_to_pass if run.tests.get(name) in _PASSED]
        if weak:
            outcome.notes.append(f"{len(weak)} of FAIL_TO_PASS pass without the fix: {weak[0]}")
            return


def _tally(verdicts: Sequence[str]) -> str:
    return ", ".join(f"{verdicts.count(name)}x {name}" for name in dict.fromkeys(verdicts))


def _first(tests: list[str]) -> str:
    return f"{len(tests)} required tests did not pass, the first {tests[0]}" if tests else "no test says why"


def apply_outcome(task: Task, outcome: Outcome) -> Task:
    """The task with what certification found; `unknown` leaves it as not certified."""
    certified = None if outcome.status == UNKNOWN else outcome.status == CERTIFIED
    flaky = None if outcome.status == UNKNOWN else outcome.status == FLAKY
    found = {key: value for key, value in outcome.to_dict().items() if key != "instance_id" and value}
    metadata = {**task.metadata, "certification": found}
    return dataclasses.replace(task, certified=certified, flaky=flaky, metadata=metadata)
