"""The red-team suite: every attempt of `attacks.py` gets the verdict it must get, on both kinds of tasks."""

from __future__ import annotations

import pytest

from tests.grading.attacks import ATTACKS, Attack

# One of each sort stays in the fast suite; a grading is about a second of CPU.
FAST = {
    "fix", "fix without the last newline", "fix with CRLF line ends", "forged session, then os._exit(0)", "path outside",
    "TestReport says passed", "test file rewritten and put back", "conftest with hooks", "only tests, strict", "empty",
}  # fmt: skip
CASES = [
    pytest.param(
        attack,
        kind,
        id=f"{kind}: {attack.name}",
        marks=[] if attack.name in FAST and kind == "junit" else pytest.mark.slow,
    )
    for attack in ATTACKS
    for kind in ("junit", "script")
    if attack.task in (kind, "both")
]


def test_the_suite_is_large_and_has_no_double():
    assert len(ATTACKS) >= 40
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert {attack.name for attack in ATTACKS} > FAST


@pytest.mark.parametrize(("attack", "kind"), CASES)
async def test_verdict(attack: Attack, kind: str, lab, grade):
    task = lab.task if kind == "junit" else lab.script_task
    result = await grade(task, attack.patch(lab), seconds=attack.seconds, **attack.settings)
    assert result.verdict is attack.verdict, f"{result.detail}\n{result.output[-3000:]}"
    assert "FOUND" not in result.output.split()
