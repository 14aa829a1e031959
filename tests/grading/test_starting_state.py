"""Images in the shape of SWE-smith and R2E-Gym on a small repository: what agents find there, and how they are graded."""

from __future__ import annotations

import shutil

import pytest

from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.grading.evaluate import run_tests
from swe_rl.grading.grader import grade_empty
from swe_rl.grading.patch_extract import extract_patch
from swe_rl.grading.patch_policy import PolicyResult
from swe_rl.sandbox.starting_state import StartingStateError
from swe_rl.tasks.certify.runner import certify_task
from swe_rl.tasks.forms import task_from_row
from swe_rl.types import Task, Verdict
from tests.grading.image_shapes import archive, r2e, smith
from tests.grading.lab import BASE, FIXED, git, write

FIX = "sed -i 's/result -= number/result += number/' calc.py"


@pytest.mark.parametrize("branch", [False, True], ids=["clean image", "branch of the mirror"])
async def test_swe_smith(branch, grade, bubblewrap, tmp_path):
    task = task_from_row({**smith(tmp_path / "repo", branch=branch), "archive": archive(tmp_path / "repo")})
    fixed_blob = git(tmp_path / "repo", "hash-object", "--stdin", data=FIXED.encode()).decode().strip()
    sandbox = await bubblewrap.open(task, deadline=Deadline(60), purpose="agent")
    look = f"git status --short; git log --oneline | wc -l; git cat-file -e {fixed_blob} && echo READ; ls tests"
    found = (await sandbox.exec(f"{look}; grep -c -- -= calc.py", timeout=30)).output.split("\n")
    assert [line for line in found if line and not line.startswith("fatal")] == ["1", "test_shout.py", "1"]
    assert await extract_patch(task, sandbox, timeout=30) == b""
    await sandbox.exec(FIX, timeout=30)
    patch = await extract_patch(task, sandbox, timeout=30)
    assert b"+        result += number" in patch and patch.count(b"diff --git") == 1
    if not branch:
        assert (await grade(task, patch)).verdict is Verdict.RESOLVED
    assert (await grade(task, task.patch.encode())).verdict is Verdict.RESOLVED
    assert (await grade_empty(task, bubblewrap, Deadline(60))).verdict is Verdict.UNRESOLVED


async def test_an_image_that_does_not_fit_is_no_starting_state(bubblewrap, tmp_path):
    task = task_from_row({**smith(tmp_path / "repo"), "archive": archive(tmp_path / "repo")})
    task.metadata["bug_patch"] = task.metadata["bug_patch"].replace("result", "outcome")
    for purpose in ("agent", "grade"):
        with pytest.raises(StartingStateError, match=r"o__p\.1a2b\.lm__x: .* the bug's patch does not apply"):
            await bubblewrap.open(task, deadline=Deadline(60), purpose=purpose)
    outcome = await certify_task(task, bubblewrap, Config(), repeat=2)
    assert outcome.status == "broken" and "the bug's patch does not apply" in outcome.reason


async def test_a_git_that_takes_no_files_does_not_fit(bubblewrap, tmp_path):
    task = task_from_row({**smith(tmp_path / "repo"), "archive": archive(tmp_path / "repo")})
    sandbox = await bubblewrap.open(task, deadline=Deadline(60), purpose="grade")
    moved = "mv .git real && echo 'gitdir: real' > .git && git rev-parse HEAD"
    assert (await sandbox.exec(moved, timeout=30)).returncode == 0
    with pytest.raises(StartingStateError, match=r"\.git is no folder"):
        await run_tests(task, PolicyResult(), sandbox, Deadline(60))


async def test_r2e_gym(grade, bubblewrap, lab, tmp_path):
    task = task_from_row({**r2e(tmp_path / "repo"), "archive": archive(tmp_path / "repo")})
    fix = task.metadata["fix_commit"]
    sandbox = await bubblewrap.open(task, deadline=Deadline(60), purpose="agent")
    found = (
        await sandbox.exec(f"ls -d *tests* *.sh; git status --short; git cat-file -e {fix} && echo READ", timeout=30)
    ).output
    assert [line for line in found.split("\n") if line and not line.startswith("fatal")] == ["run.sh", "tests"]
    await sandbox.exec(f"{FIX}; echo 'echo PASSED' > run_tests.sh", timeout=30)
    patch = await extract_patch(task, sandbox, timeout=30)
    assert patch.count(b"diff --git") == 2
    result = await grade(task, patch)
    assert result.verdict is Verdict.RESOLVED and result.detail["test_files_left_out"] == ["run_tests.sh"]
    assert (await grade(task, task.patch.encode())).verdict is Verdict.RESOLVED
    assert (await grade_empty(task, bubblewrap, Deadline(60))).verdict is Verdict.UNRESOLVED
    forged = "".join(f"echo PASSED r2e_tests/test_1.py::{name.replace('.', '::')}\n" for name in task.fail_to_pass)
    cheat = lab.files(
        {"run_tests.sh": forged + "echo '8 passed in 0.1s'\n", "r2e_tests/test_1.py": "def test(): pass\n"}
    )
    assert (await grade(task, cheat)).verdict is Verdict.NO_PATCH


@pytest.mark.parametrize("beyond", ["committed", "in the work tree"])
async def test_what_the_image_changed_is_not_the_agents_work(beyond, lab, bubblewrap, grade, tmp_path):
    """SWE-bench's images edit configuration before they install: with a strict policy that would be every attempt's tampering."""
    copy = shutil.copytree(lab.repo, tmp_path / "copy", symlinks=True)
    write(copy, {"setup.cfg": "[tool:pytest]\naddopts = -q -x\n", "pkg/text.py": "# patched\n" + BASE["pkg/text.py"]})
    if beyond == "committed":
        git(copy, "commit", "-q", "-a", "-m", "SWE-bench")
    task = Task(**{**lab.task.__dict__, "archive": archive(copy)})
    sandbox = await bubblewrap.open(task, deadline=Deadline(60), purpose="agent")
    assert (await sandbox.exec("git status --short", timeout=30)).output == ""
    assert await extract_patch(task, sandbox, timeout=30) == b""
    await sandbox.exec(FIX, timeout=30)
    patch = await extract_patch(task, sandbox, timeout=30)
    assert patch == lab.files({"calc.py": FIXED})
    result = await grade(task, patch, swe_strict_no_config_patch=True)
    assert result.verdict is Verdict.RESOLVED


@pytest.mark.parametrize("kind", ["junit", "script"])
async def test_options_that_a_shell_starts_with_do_not_end_the_grading(kind, lab, grade, tmp_path):
    copy = shutil.copytree(lab.repo, tmp_path / "copy", symlinks=True)
    write(copy, {"start.sh": "set -auC -o pipefail\n"})
    git(copy, "add", "start.sh")
    git(copy, "commit", "-q", "-m", "start")
    task = lab.task if kind == "junit" else lab.script_task
    env = {**task.env, "BASH_ENV": "/testbed/start.sh"}
    task = Task(**{**task.__dict__, "archive": archive(copy), "env": env})
    assert (await grade(task, lab.files({"calc.py": FIXED}))).verdict is Verdict.RESOLVED
    assert (await grade(task, lab.files({"README.md": "x\n"}))).verdict is Verdict.UNRESOLVED
