"""R2E-Gym's rows: the expected status of every test in a JSON string, the fix as a parsed commit, the tests in the image.

Format: R2E-Gym's `commit_models/diff_classes.py` and `agenthub/runtime/docker.py`. `commit_hash` is the commit of the fix; the
image has the one before it checked out (and the later one in its objects, which is why history is hidden from agents).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swe_rl.tasks import fields
from swe_rl.tasks.test_command import script_from_command
from swe_rl.types import Task

_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[\d+m")
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
HIDDEN = ("run_tests.sh", "r2e_tests")  # not in git; a patch that brings its own does not replace them
# The images keep the tests at / and R2E-Gym's runner links them in only while they run.
_RUN_TESTS = """for place in /root/r2e_tests /r2e_tests; do
  if [ -d "$place" ] && [ ! -e r2e_tests ]; then ln -s "$place" r2e_tests; fi
done
if [ -f /root/run_tests.sh ]; then bash /root/run_tests.sh; else bash run_tests.sh; fi"""
_MARKS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}


def complete_r2e(task: Task, flat: Mapping[str, Any]) -> None:
    """Fill tests, script, parser and the fix. R2E-Gym rewards the exact outcome of all tests; here what must pass is kept."""
    expected = fields.mapping(flat.get("expected_output_json"), "expected_output_json")
    names = {_COLOUR.sub("", name).split(" - ")[0]: status for name, status in expected.items()}
    task.fail_to_pass = task.fail_to_pass or [name for name, status in names.items() if name and status == "PASSED"]
    if not task.fail_to_pass:
        raise ValueError("expected_output_json names no test that must pass")
    if issue := _ISSUE.search(task.problem_statement):
        task.problem_statement = issue[1].strip() + "\n"
    if fields.is_missing(flat.get("base_commit")):
        task.metadata["fix_commit"], task.base_commit = task.base_commit, ""
    task.patch = task.patch or commit_patch(fields.mapping(flat.get("parsed_commit_content"), "parsed_commit_content"))
    task.test_files = task.test_files or list(HIDDEN)
    task.eval_script = task.eval_script or script_from_command(_RUN_TESTS)
    task.log_parser = task.log_parser or "r2e"


def commit_patch(commit: Mapping[str, Any]) -> str:
    """A git patch of the commit's text files other than tests; "" where the row brings no commit. Raises ValueError."""
    try:
        return "".join(_file_patch(diff) for diff in commit.get("file_diffs", ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"parsed_commit_content is not in R2E-Gym's form: {error!r}") from None


def _file_patch(diff: Mapping[str, Any]) -> str:
    path = diff["header"]["file"]["path"]
    if diff.get("is_binary_file") or _is_test(path) or not diff.get("hunks"):
        return ""
    lines = [f"diff --git a/{path} b/{path}"]
    lines += [misc] if (misc := diff["header"].get("misc_line")) else []
    lines += [f"--- {diff['minus_file']['path']}", f"+++ {diff['plus_file']['path']}"]
    for hunk in diff["hunks"]:
        spans = hunk["descriptor"]
        section = f" {spans['section']}" if spans.get("section") else ""
        lines.append(f"@@ -{_span(spans['old_range'])} +{_span(spans['new_range'])} @@{section}")
        lines += [_MARKS[line["type"]] + line["content"] for line in hunk["line_group"]["all_lines"]]
    return "\n".join(lines) + "\n"


def _span(values: Mapping[str, Any]) -> str:
    return str(values["start"]) if values.get("length") is None else f"{values['start']},{values['length']}"


def _is_test(path: str) -> bool:
    """R2E-Gym's own rule (FileDiff.is_test_file)."""
    *folders, name = path.split("/")
    return (
        name.startswith("test_")
        or name.endswith("_test.py")
        or not {"tests", "Tests", "test", "Test"}.isdisjoint(folders)
    )
