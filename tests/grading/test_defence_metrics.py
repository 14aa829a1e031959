"""Every defence that a grading runs into is counted: from real gradings, not from words that are copied here."""

from __future__ import annotations

import pytest

from swe_rl.grading.defence_metrics import KINDS, defence_metrics, defences_met
from tests.grading.attacks import ATTACKS

EXAMPLES = {
    "fix and weakened tests": ("junit", ["test_files_left_out"]),
    "conftest with hooks": ("junit", ["config_files_left_out"]),
    "stale bytecode": ("junit", ["junk_left_out"]),
    "test file rewritten and put back": ("script", ["test_files_rewritten"]),
    "unittest assertions do nothing": ("script", ["harness_changed"]),
    "conftest, strict": ("script", ["config_files_left_out", "strict_policy"]),
    "the grader's shell leaves with 0": ("script", ["run_ended_from_inside"]),
    "failures are not printed, passes are": ("script", ["contradicting_log"]),
    "fix": ("junit", []),
}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_defences_of_real_gradings(name, lab, grade):
    kind, expected = EXAMPLES[name]
    attack = next(attack for attack in ATTACKS if attack.name == name)
    result = await grade(lab.task if kind == "junit" else lab.script_task, attack.patch(lab), **attack.settings)
    assert set(defences_met(result.detail)) >= set(expected), result.detail
    assert expected or defences_met(result.detail) == []


def test_shares():
    metrics = defence_metrics([["harness_changed", "no_session"], [], ["no_session"], []])
    assert (metrics["defence/no_session"], metrics["defence/harness_changed"]) == (0.5, 0.25)
    assert len(metrics) == len(KINDS) and set(defence_metrics([]).values()) == {0.0}
