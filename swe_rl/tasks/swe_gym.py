"""Eval scripts of SWE-Gym's repositories, which swebench's maps do not know.

Commands: those of SWE-Gym's fork of the harness (conda environment `testbed` in the image, pytest on the patched test
files). Installation is not repeated: the images hold an editable install.
"""

from __future__ import annotations

import re
import shlex

from swe_rl.tasks.images import SWE_GYM_REPOS
from swe_rl.tasks.test_command import script_from_parts
from swe_rl.types import Task

_COMMANDS = {
    "dask/dask": "pytest -n0 -rA --color=no",
    "pandas-dev/pandas": "pytest -rA --tb=long",
    "python/mypy": "pytest -n0 -rA -k",
    "pydantic/pydantic": "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
    "facebookresearch/hydra": "pytest -rA --tb=long",
    "bokeh/bokeh": "pytest -rA -n0",
    "iterative/dvc": "pytest -rA",
}
_DEFAULT = "pytest -n0 -rA"
_MYPY_CASE = re.compile(r"^\+?\s*\[case ([^\]]+)\]", re.MULTILINE)
_DELIMITER = "EOF_114329324912"


def swe_gym_script(task: Task) -> str:
    """The script, or "" where the task is none of SWE-Gym's or has no test patch."""
    if task.repo not in SWE_GYM_REPOS or not task.test_patch or not task.test_files:
        return ""
    files = " ".join(shlex.quote(name) for name in task.test_files)
    restore = f"git checkout {task.base_commit} -- {_old_files(task)}" if _old_files(task) else ""
    setup = "\n".join(
        [
            "source /opt/miniconda3/bin/activate",
            "conda activate testbed",
            f"cd {task.workdir}",
            f"git config --global --add safe.directory {task.workdir}",
            *([restore] if restore else []),
            f"git apply -v - <<'{_DELIMITER}'\n{task.test_patch}\n{_DELIMITER}",
        ]
    )
    command = _COMMANDS.get(task.repo, _DEFAULT)
    if task.repo == "python/mypy":
        cases = list(dict.fromkeys(_MYPY_CASE.findall(task.test_patch)))
        return script_from_parts(setup, f"{command} {shlex.quote(' or '.join(cases))}") if cases else ""
    return script_from_parts(setup, f"{command} {files}")


def _old_files(task: Task) -> str:
    """Patched test files that exist at the base commit (new ones have nothing to be restored to)."""
    old = re.findall(r"^--- a/(.+)$", task.test_patch, re.MULTILINE)
    return " ".join(shlex.quote(name) for name in dict.fromkeys(old) if name in task.test_files)
