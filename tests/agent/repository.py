"""A tiny git repository as a task's archive, and the local sandbox that holds it."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from swe_rl.config import Config
from swe_rl.sandbox import bubblewrap
from swe_rl.types import Task

SOURCE = "def clamp(value, low, high):\n    return max(low, max(value, high))\n"
FIXED = SOURCE.replace("max(value", "min(value")
TEST = "from solution import clamp\n\n\ndef test_low():\n    assert clamp(-1, 0, 2) == 0\n\n\n"
TEST += "def test_high():\n    assert clamp(3, 0, 2) == 2\n"
FIX_COMMAND = "sed -i '2s/max(value/min(value/' solution.py"
SUBMIT_COMMAND = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True).stdout


def build_task(folder: Path, instance_id: str = "demo__clamp-1") -> Task:
    """A repository with one bug, and the hidden test that shows it."""
    repo = folder / "repo"
    repo.mkdir(parents=True)
    (repo / "solution.py").write_text(SOURCE)
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "start")
    base = git(repo, "rev-parse", "HEAD").strip()
    archive = folder / "repo.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(repo, arcname=".")
    lines = TEST.splitlines()
    test_patch = (
        "diff --git a/test_solution.py b/test_solution.py\nnew file mode 100644\n--- /dev/null\n+++ b/test_solution.py\n"
        f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    )
    return Task(
        instance_id=instance_id,
        problem_statement="clamp(3, 0, 2) returns 3 instead of 2 (solution.py)",
        base_commit=base,
        archive=str(archive),
        eval_script="python -m pytest -rA -q -p no:cacheprovider test_solution.py\n",
        test_patch=test_patch,
        test_files=["test_solution.py"],
        fail_to_pass=["test_solution.py::test_high"],
        pass_to_pass=["test_solution.py::test_low"],
        log_parser="pytest",
        certified=True,
        flaky=False,
    )


def local_sandbox_name() -> str:
    return "process" if bubblewrap.why_unusable() else "bubblewrap"


def local_config(tmp_path: Path, **settings: object) -> Config:
    """Small bounds for the tests' attempts, in a local sandbox."""
    values: dict[str, object] = {
        "sandbox": local_sandbox_name(),
        "sandbox_root": str(tmp_path / "sandboxes"),
        "step_limit": 6,
        "swe_command_timeout": 20.0,
        "rollout_max_context_len": 6000,
        "rollout_max_response_len": 400,
        "swe_rollout_timeout": 120.0,
        "swe_eval_timeout": 60.0,
        "swe_save_traj_dir": str(tmp_path / "attempts"),
    }
    return Config(**{**values, **settings})
