"""Eval scripts that make an environment of their own for the tests: the grader's plugin stays out where it could not be found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swe_rl.types import Verdict
from tests.grading.lab import EVAL_SCRIPT

RUN = "python -m pytest -rA -p no:cacheprovider tests/test_calc.py tests/test_shout.py"
SCRIPTS = {
    "path without the old value": EVAL_SCRIPT.replace(RUN, f"PYTHONPATH=. {RUN}"),
    "path exported before": EVAL_SCRIPT.replace(": '>>>>> Start", "export PYTHONPATH=.\n: '>>>>> Start"),
    "path with the old value": EVAL_SCRIPT.replace(RUN, f'PYTHONPATH=".:$PYTHONPATH" {RUN}'),
    # As sphinx's tox.ini does: PYTEST_ADDOPTS is handed on, PYTHONPATH is not.
    "tox": EVAL_SCRIPT.replace(": '>>>>> Start", 'tox() { PYTHONPATH=. "$@"; }\n: \'>>>>> Start').replace(
        RUN, f"tox {RUN}"
    ),
    "clean": EVAL_SCRIPT.replace(RUN, f'env -i PATH="$PATH" PYTHONPATH=. {RUN}'),
}


@pytest.mark.parametrize("kind", SCRIPTS)
async def test_honest_patches_keep_their_verdicts(grade, lab, kind):
    task = replace(lab.script_task, eval_script=SCRIPTS[kind])
    fixed = await grade(task, lab.task.patch.encode())
    assert fixed.verdict is Verdict.RESOLVED, fixed.detail
    wrong = await grade(task, lab.files({"README.md": "nothing of use\n"}))
    assert wrong.verdict is Verdict.UNRESOLVED, wrong.detail
