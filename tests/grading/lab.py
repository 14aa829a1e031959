"""A small real repository with hidden tests, and patches against it made by git from edits: the ground of the grading tests."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from swe_rl.types import Task

CALC = '''"""Arithmetic on lists."""


def total(numbers):
    """Sum of the numbers."""
    result = 0
    for number in numbers:
        result -= number
    return result


def largest(numbers):
    """The largest of the numbers."""
    return max(numbers)


def halve(number):
    """Half of the number, rounded down."""
    return number // 2
'''
FIXED = CALC.replace("result -= number", "result += number")
BASE = {
    "calc.py": CALC,
    "README.md": "# calc\n",
    "crlf.txt": "one\r\ntwo\r\n",
    "data.bin": bytes(range(256)),
    "conftest.py": "import pytest\n\n\n@pytest.fixture\ndef numbers():\n    return [1, 2, 3]\n",
    "setup.cfg": "[tool:pytest]\naddopts = -q\n",
    ".gitignore": "build/\n*.log\n",
    "pkg/__init__.py": "",
    "pkg/text.py": "def shout(word):\n    return word.upper()\n",
    "bin/run_tests.py": "import sys\n\nimport pytest\n\nsys.exit(pytest.main(sys.argv[1:]))\n",
    "run.sh": "#!/bin/sh\necho run\n",
    "tests/test_shout.py": "from pkg.text import shout\n\n\ndef test_shout():\n    assert shout('a') == 'A'\n",
}
TESTS = """import unittest

import pytest

import calc


def test_total(numbers):
    assert calc.total(numbers) == 6


@pytest.mark.parametrize("numbers, wanted", [([5], 5), ([1, 1], 2)], ids=["one number", "zwei Zahlen ü"])
def test_total_of(numbers, wanted):
    assert calc.total(numbers) == wanted


def test_largest(numbers):
    assert calc.largest(numbers) == 3


class TestHalve(unittest.TestCase):
    def test_halve(self):
        self.assertEqual(calc.halve(5), 2)

    def test_total_too(self):
        self.assertEqual(calc.total([2, 2]), 4)


def test_halve_refuses():
    with pytest.raises(TypeError):
        calc.halve("x")
"""
FAIL_TO_PASS = [
    "tests/test_calc.py::test_total",
    "tests/test_calc.py::test_total_of[one number]",
    "tests/test_calc.py::test_total_of[zwei Zahlen \\xfc]",
    "tests/test_calc.py::TestHalve::test_total_too",
]
PASS_TO_PASS = [
    "tests/test_calc.py::test_largest",
    "tests/test_calc.py::TestHalve::test_halve",
    "tests/test_calc.py::test_halve_refuses",
    "tests/test_shout.py::test_shout",
]
# The here-document is as in the scripts of the field; where its lines do not arrive as they are, nothing is tested.
EVAL_SCRIPT = """#!/bin/bash
set -uxo pipefail
cat <<'EOF' | grep -qx '$HOME `pwd`' || exit 1
$HOME `pwd`
EOF
: '>>>>> Start Test Output'
python -m pytest -rA -p no:cacheprovider tests/test_calc.py tests/test_shout.py
: '>>>>> End Test Output'
git status --short
"""
# As Django's and SymPy's: a build that may import the package, and a test runner that is a file of the repository.
RUNNER_SCRIPT = """#!/bin/bash
set -uxo pipefail
[ -f setup.py ] && python setup.py build
python -c 'import calc'
: '>>>>> Start Test Output'
python ./bin/run_tests.py -rA -p no:cacheprovider tests/test_calc.py tests/test_shout.py
: '>>>>> End Test Output'
"""
_GIT_ENV = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z", "PATH": os.environ["PATH"],
}  # fmt: skip


def git(where: Path, *arguments: str, data: bytes | None = None) -> bytes:
    """Run git in `where`; the test fails with git's words if it fails."""
    done = subprocess.run(["git", *arguments], cwd=where, input=data, capture_output=True, env=_GIT_ENV, timeout=60)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@dataclass(frozen=True)
class Lab:
    """The repository (never changed), its archive, and the task with our runner or with an eval script."""

    repo: Path
    task: Task

    @property
    def script_task(self) -> Task:
        return replace(self.task, instance_id="calc-script", log_parser="pytest", eval_script=EVAL_SCRIPT)

    @property
    def runner_task(self) -> Task:
        return replace(self.script_task, instance_id="calc-runner", eval_script=RUNNER_SCRIPT)

    def patch(self, edit: Callable[[Path], None], *options: str) -> bytes:
        """git's diff of what `edit` does to a copy of the repository."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "repo"
            subprocess.run(["cp", "-a", str(self.repo), str(copy)], check=True)
            edit(copy)
            git(copy, "add", "-A", "-f")
            return git(copy, "diff", "--cached", "--binary", "--full-index", *options)

    def files(self, changed: dict[str, str | bytes]) -> bytes:
        """git's diff of writing files."""
        return self.patch(lambda root: write(root, changed))


def build_lab(folder: Path) -> Lab:
    repo = folder / "repo"
    repo.mkdir()
    write(repo, BASE)
    (repo / "run.sh").chmod(0o755)
    (repo / "link").symlink_to("README.md")
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "base")
    git(repo, "gc", "-q")
    base = git(repo, "rev-parse", "HEAD").decode().strip()
    archive = folder / "repo.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(repo, arcname=".")
    lab = Lab(repo, Task("calc", "total() is wrong"))
    test_patch = lab.files({"tests/test_calc.py": TESTS}).decode()
    gold = lab.files({"calc.py": FIXED}).decode()
    task = Task(
        instance_id="calc-junit",
        problem_statement="total() returns negative sums",
        base_commit=base,
        archive=str(archive),
        patch=gold,
        test_patch=test_patch,
        test_files=["tests/test_calc.py", "tests/test_shout.py"],
        fail_to_pass=FAIL_TO_PASS,
        pass_to_pass=PASS_TO_PASS,
        log_parser="junit",
        env={"PYTHONPATH": "."},
        certified=True,
        flaky=False,
    )
    return Lab(repo, task)
