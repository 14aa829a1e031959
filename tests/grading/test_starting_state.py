"""Images in the shape of SWE-smith and R2E-Gym on a small repository: what agents find there, and how they are graded."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError
from swe_rl.grading.grader import grade_empty
from swe_rl.grading.patch_extract import extract_patch
from swe_rl.tasks.forms import task_from_row
from swe_rl.types import Task, Verdict
from tests.grading.lab import BASE, CALC, FAIL_TO_PASS, FIXED, PASS_TO_PASS, TESTS, git, write

FIX = "sed -i 's/result -= number/result += number/' calc.py"


def diff(folder: Path, files: dict[str, str]) -> str:
    """git's diff of writing `files`, which are put back."""
    write(folder, files)
    text = git(folder, "diff", "--full-index").decode()
    git(folder, "checkout", "-q", "--", ".")
    return text


def archive(folder: Path) -> str:
    with tarfile.open(folder.with_suffix(".tar"), "w") as tar:
        tar.add(folder, arcname=".")
    return str(folder.with_suffix(".tar"))


def clean_repository(folder: Path, **files: str) -> Path:
    """The lab's repository without its bug."""
    folder.mkdir()
    write(folder, {**BASE, "calc.py": FIXED, **files})
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", "Initial commit")
    return folder


@pytest.fixture
def smith(tmp_path):
    """Makes a task of SWE-smith's, whose image is the clean repository, or has a branch of the mirror checked out."""

    def make(branch: bool = False, bug: str = CALC) -> Task:
        repo = clean_repository(tmp_path / "repo", **{"tests/test_calc.py": TESTS})
        bug_patch = diff(repo, {"calc.py": bug})
        if branch:
            git(repo, "checkout", "-q", "-b", "o__p.1a2b.lm__x")
            git(repo, "apply", data=bug_patch.encode())
            git(repo, "commit", "-q", "-a", "-m", "Bug Patch")
            git(repo, "rm", "-q", "tests/test_calc.py")
            git(repo, "commit", "-q", "-m", "Remove F2P Tests")
        row = {
            "instance_id": "o__p.1a2b.lm__x", "repo": "swesmith/o__p.1a2b", "patch": bug_patch, "problem_statement": "s",
            "FAIL_TO_PASS": FAIL_TO_PASS, "PASS_TO_PASS": PASS_TO_PASS, "base_commit": "c" * 40, "archive": archive(repo),
        }  # fmt: skip
        return task_from_row(row)

    return make


@pytest.mark.parametrize("branch", [False, True], ids=["clean image", "branch of the mirror"])
async def test_swe_smith(branch, smith, grade, bubblewrap, tmp_path):
    task = smith(branch)
    fixed_blob = git(tmp_path / "repo", "hash-object", "--stdin", data=FIXED.encode()).decode().strip()
    sandbox = await bubblewrap.open(task, deadline=Deadline(60), purpose="agent")
    look = f"git status --short; git log --oneline | wc -l; git cat-file -e {fixed_blob} && echo READ; ls tests"
    found = (await sandbox.exec(f"{look}; grep -c -- -= calc.py", timeout=30)).output.split("\n")
    assert [line for line in found if line and not line.startswith("fatal")] == ["1", "test_shout.py", "1"]
    assert await extract_patch(task, sandbox, timeout=30) == b""
    await sandbox.exec(FIX, timeout=30)
    patch = await extract_patch(task, sandbox, timeout=30)
    assert b"+        result += number" in patch and patch.count(b"diff --git") == 1
    result = await grade(task, patch)
    assert result.verdict is Verdict.RESOLVED, (result.detail, result.output)
    assert (await grade(task, task.patch.encode())).verdict is Verdict.RESOLVED
    assert (await grade_empty(task, bubblewrap, Deadline(60))).verdict is Verdict.UNRESOLVED


async def test_an_image_that_does_not_fit_is_no_starting_state(smith, bubblewrap):
    task = smith()
    task.metadata["bug_patch"] = task.metadata["bug_patch"].replace("result", "outcome")
    for purpose in ("agent", "grade"):
        with pytest.raises(SandboxError, match=r"o__p\.1a2b\.lm__x: its image .* the bug's patch does not apply"):
            await bubblewrap.open(task, deadline=Deadline(60), purpose=purpose)


@pytest.fixture
def r2e(tmp_path):
    """A task of R2E-Gym's: the commit before the fix is checked out, the fix in the objects, the tests beside git."""
    repo = tmp_path / "repo"
    repo.mkdir()
    write(repo, BASE)
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", "-A", "-f")
    git(repo, "commit", "-q", "-m", "before")
    write(repo, {"calc.py": FIXED})
    git(repo, "commit", "-q", "-a", "-m", "the fix")
    fix = git(repo, "rev-parse", "HEAD").decode().strip()
    git(repo, "checkout", "-q", "HEAD~1")
    run = "python -m pytest -rA -p no:cacheprovider r2e_tests\n"
    write(
        repo, {"run_tests.sh": run, "install.sh": "true\n", "r2e_tests/__init__.py": "", "r2e_tests/test_1.py": TESTS}
    )
    expected = {name.split("::", 1)[1].replace("::", "."): "PASSED" for name in FAIL_TO_PASS + PASS_TO_PASS[:3]}
    row = {
        "repo_name": "calc", "docker_image": "namanjain12/calc_final:x", "commit_hash": fix, "problem_statement": "s",
        "expected_output_json": expected, "archive": archive(repo), "patch": "",
    }  # fmt: skip
    return task_from_row(row)


async def test_r2e_gym(r2e, grade, bubblewrap, lab):
    fix = r2e.metadata["fix_commit"]
    sandbox = await bubblewrap.open(r2e, deadline=Deadline(60), purpose="agent")
    found = (
        await sandbox.exec(f"ls -d *tests* *.sh; git status --short; git cat-file -e {fix} && echo READ", timeout=30)
    ).output
    assert [line for line in found.split("\n") if line and not line.startswith("fatal")] == ["run.sh", "tests"]
    await sandbox.exec(f"{FIX}; echo 'echo PASSED' > run_tests.sh", timeout=30)
    patch = await extract_patch(r2e, sandbox, timeout=30)
    assert patch.count(b"diff --git") == 2
    result = await grade(r2e, patch)
    assert result.verdict is Verdict.RESOLVED and result.detail["test_files_left_out"] == ["run_tests.sh"]
    assert (await grade_empty(r2e, bubblewrap, Deadline(60))).verdict is Verdict.UNRESOLVED
    forged = "".join(f"echo PASSED r2e_tests/test_1.py::{name.replace('.', '::')}\n" for name in r2e.fail_to_pass)
    cheat = lab.files(
        {"run_tests.sh": forged + "echo '8 passed in 0.1s'\n", "r2e_tests/test_1.py": "def test(): pass\n"}
    )
    assert (await grade(r2e, cheat)).verdict is Verdict.NO_PATCH


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
