"""R2E-Gym's rows: the expected status of every test in a JSON string, the tests inside the image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swe_rl.tasks import fields
from swe_rl.tasks.test_command import script_from_command
from swe_rl.types import Task

_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[\d+m")
# R2E-Gym's images keep the tests out of the repository, and its runner links them in before it runs them.
_RUN_TESTS = """if [ -d /root/r2e_tests ] && [ ! -e r2e_tests ]; then ln -s /root/r2e_tests r2e_tests; fi
if [ -f /root/run_tests.sh ]; then bash /root/run_tests.sh; else bash run_tests.sh; fi"""


def complete_r2e(task: Task, flat: Mapping[str, Any]) -> None:
    """Fill tests, script and parser. R2E-Gym rewards exactly the expected outcome of all tests; what must pass is kept."""
    expected = fields.mapping(flat.get("expected_output_json"), "expected_output_json")
    names = {_COLOUR.sub("", name).split(" - ")[0]: status for name, status in expected.items()}
    task.fail_to_pass = task.fail_to_pass or [name for name, status in names.items() if name and status == "PASSED"]
    if not task.fail_to_pass:
        raise ValueError("expected_output_json names no test that must pass")
    task.eval_script = task.eval_script or script_from_command(_RUN_TESTS)
    task.log_parser = task.log_parser or "r2e"
