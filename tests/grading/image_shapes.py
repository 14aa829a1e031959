"""The small repository laid out as the images of SWE-smith and R2E-Gym hold theirs, with a row of each dataset's form."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from tests.grading.lab import BASE, CALC, FAIL_TO_PASS, FIXED, PASS_TO_PASS, TESTS, git, write


def archive(folder: Path) -> str:
    """A tar of the folder, beside it."""
    with tarfile.open(folder.with_suffix(".tar"), "w") as tar:
        tar.add(folder, arcname=".")
    return str(folder.with_suffix(".tar"))


def _repository(folder: Path, files: dict[str, str | bytes]) -> None:
    folder.mkdir(parents=True)
    write(folder, files)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", "Initial commit")


def smith(folder: Path, *, branch: bool = False) -> dict[str, Any]:
    """SWE-smith's row; `folder` becomes the clean repository, or has the branch of the mirror checked out."""
    _repository(folder, {**BASE, "calc.py": FIXED, "tests/test_calc.py": TESTS})
    write(folder, {"calc.py": CALC})
    bug = git(folder, "diff", "--full-index")
    git(folder, "checkout", "-q", "--", ".")
    if branch:
        git(folder, "checkout", "-q", "-b", "o__p.1a2b.lm__x")
        git(folder, "apply", data=bug)
        git(folder, "commit", "-q", "-a", "-m", "Bug Patch")
        git(folder, "rm", "-q", "tests/test_calc.py")
        git(folder, "commit", "-q", "-m", "Remove F2P Tests")
    return {
        "instance_id": "o__p.1a2b.lm__x", "repo": "swesmith/o__p.1a2b", "patch": bug.decode(), "problem_statement": "s",
        "FAIL_TO_PASS": FAIL_TO_PASS, "PASS_TO_PASS": PASS_TO_PASS, "base_commit": "c" * 40,
    }  # fmt: skip


def r2e(folder: Path) -> dict[str, Any]:
    """R2E-Gym's row; in `folder` the commit before the fix is checked out, the tests lie beside git, the fix in the objects."""
    _repository(folder, BASE)
    write(folder, {"calc.py": FIXED})
    git(folder, "commit", "-q", "-a", "-m", "the fix")
    fix = git(folder, "rev-parse", "HEAD").decode().strip()
    diff = git(folder, "diff", "HEAD~1", "HEAD").decode().splitlines()
    git(folder, "checkout", "-q", "HEAD~1")
    run = "python3 -m pytest -rA -p no:cacheprovider r2e_tests\n"
    files = {"run_tests.sh": run, "install.sh": "true\n", "r2e_tests/__init__.py": "", "r2e_tests/test_1.py": TESTS}
    write(folder, files)
    start, lines = next((i, line.split()) for i, line in enumerate(diff) if line.startswith("@@"))
    spans = [dict(zip(("start", "length"), map(int, word[1:].split(",")), strict=True)) for word in lines[1:3]]
    kinds = {" ": "context", "+": "added", "-": "deleted"}
    hunk = {
        "descriptor": {"old_range": spans[0], "new_range": spans[1], "section": ""},
        "line_group": {"all_lines": [{"type": kinds[line[0]], "content": line[1:]} for line in diff[start + 1 :]]},
    }
    changed = {
        "header": {"file": {"path": "calc.py"}},
        "minus_file": {"path": "a/calc.py"},
        "plus_file": {"path": "b/calc.py"},
    }
    return {
        "repo_name": "calc", "docker_image": "namanjain12/calc_final:x", "commit_hash": fix, "problem_statement": "s",
        "parsed_commit_content": {"file_diffs": [{**changed, "hunks": [hunk]}], "old_commit_hash": fix + "^"},
        "expected_output_json": {
            name.split("::", 1)[1].replace("::", "."): "PASSED" for name in FAIL_TO_PASS + PASS_TO_PASS[:3]
        },
    }  # fmt: skip
