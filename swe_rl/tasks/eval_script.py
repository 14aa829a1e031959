"""The eval script of a task: the row's own, or the one that the `swebench` package makes for its repository and version."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from swe_rl.errors import DataError, UsageError
from swe_rl.tasks.load import find_task
from swe_rl.tasks.swe_gym import swe_gym_script
from swe_rl.tasks.swebench_library import SwebenchLibrary, swebench_library
from swe_rl.types import Task


def eval_script_for(task: Task) -> str:
    """Bash that grades the task: `task.eval_script`, else swebench's script, else one for SWE-Gym's repositories.

    Raises DataError where there is no way to make one, naming what is missing; UsageError where swebench is not installed.
    """
    if task.eval_script:
        return task.eval_script
    script = swe_gym_script(task)
    if script:
        return script
    return str(make_spec(task, swebench_library()).eval_script)


def script_maker(task: Task) -> str:
    """Who makes the scripts of tasks of this repository and version, as `eval_script_for` would; for counting."""
    if swe_gym_script(task):
        return "made for SWE-Gym's repositories"
    try:
        known = task.version in swebench_library().specs.get(task.repo, {})
    except UsageError:
        return "unknown: swebench is not installed"
    return "made by swebench" if known else "none can be made"


def make_spec(task: Task, library: SwebenchLibrary) -> Any:
    """swebench's TestSpec of the task. Raises DataError where its maps do not know the repository or the version."""
    versions = library.specs.get(task.repo)
    if versions is None or task.version not in versions:
        known = (
            "the repository" if versions is None else f"version {task.version!r} (known: {', '.join(sorted(versions))})"
        )
        raise DataError(
            f"task {task.instance_id}: swebench {library.version} does not know {known} of {task.repo or '(no repo)'};"
            " give the row an eval_script or a test command (eval_cmd)"
        )
    instance = {
        "instance_id": task.instance_id,
        "repo": task.repo,
        "version": task.version,
        "base_commit": task.base_commit,
        "test_patch": task.test_patch,
        "FAIL_TO_PASS": task.fail_to_pass,
        "PASS_TO_PASS": task.pass_to_pass,
        "image_assets": task.metadata.get("image_assets") or {},
    }
    try:
        return library.make_test_spec(instance)
    except Exception as error:  # the library parses the row's test patch; any failure is the row's
        raise DataError(f"task {task.instance_id}: swebench cannot make its eval script: {error}") from error


def main(argv: list[str]) -> int:
    """`swe-rl data eval-script`: print the script, byte for byte as it would run."""
    parser = argparse.ArgumentParser(
        prog="swe-rl data eval-script",
        description="Print the eval script of one task: the row's own, or made by the swebench package from repo and version.",
    )
    parser.add_argument("--tasks", required=True, help="dataset in any known form (JSONL, JSON, Parquet, folder)")
    parser.add_argument("--instance-id", required=True, help="which task")
    arguments = parser.parse_args(argv)
    script = eval_script_for(find_task(arguments.tasks, arguments.instance_id, for_training=False))
    sys.stdout.buffer.write(script.encode("utf-8"))
    sys.stdout.buffer.flush()
    return 0
