"""SWE-smith's rows: `patch` makes the bug, one image serves all bugs of a repository, the tests are in the repository.

Format: SWE-smith's `harness/gather.py` and dataset card. `base_commit`, where there is one, is the bug's commit on a branch of
the mirror, which the image does not hold: the sandbox makes that state from the bug's patch (`sandbox/starting_state.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from swe_rl.tasks import fields
from swe_rl.tasks.reverse import reverse_patch
from swe_rl.tasks.test_command import script_from_parts
from swe_rl.types import Task

_CONDA = "source /opt/miniconda3/bin/activate\nconda activate testbed"
# SWE-smith's default test command; -rA: a repository whose settings say -q would cancel --verbose out.
_PYTEST = "pytest -rA --disable-warnings --color=no --tb=no --verbose"


def is_swe_smith(row: Mapping[str, Any]) -> bool:
    """Whether the row's `patch` makes a bug in place of fixing one."""
    if not fields.is_missing(row.get("test_patch")):
        return False
    named = f"{row.get('repo') or ''} {row.get('image_name') or ''} {row.get('data_source') or ''}".lower()
    return "swesmith" in named or "swe-smith" in named or "swe_smith" in named


def complete_swe_smith(task: Task, *, own_command: bool) -> None:
    """Turn the bug into the fix, name the image as it is published, and make the script.

    own_command: the row says itself how its tests are run. Raises ValueError where nothing says so.
    """
    if task.patch:
        task.metadata["bug_patch"] = task.patch
        task.patch = reverse_patch(task.patch)
    if task.base_commit:
        task.metadata["bug_commit"], task.base_commit = task.base_commit, ""
    task.image = published(task.image)
    files = list(dict.fromkeys(name.split("::")[0] for name in task.fail_to_pass + task.pass_to_pass if name))
    task.test_files = task.test_files or files
    if own_command or task.eval_script:
        return
    strange = next((name for name in files if not name.endswith((".py", ".txt", ".rst"))), "")
    if strange:
        raise ValueError(
            f"{strange[:60]!r} is no test of pytest's: give the row an eval_script or a test command (eval_cmd)"
        )
    task.log_parser = task.log_parser or "pytest"
    task.eval_script = script_from_parts(_CONDA, f"{_PYTEST} {' '.join(map(shlex.quote, files))}")


def published(image: str) -> str:
    """The name on the hub of an image that the row calls by its short name (`swesmith.x86_64.o__p.1a2b`)."""
    if "/" in image or not image.startswith("swesmith."):
        return image
    name = image.replace("__", "_1776_").lower()
    return f"jyangballin/{name}" if ":" in name else f"jyangballin/{name}:latest"
