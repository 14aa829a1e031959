"""Small real tasks for tests: a repository in an archive, a fix, hidden tests, of each kind that certification tells apart."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

from swe_rl.types import Task

SOURCE = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n"
FIX = """diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a - b
+    return a + b


 def twice(a):
"""
WRONG = FIX.replace("+    return a + b", "+    return a * b")
_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@t",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@t",
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=_ENV, capture_output=True, text=True, check=True)
    return done.stdout


def make_archive(folder: Path) -> tuple[str, str]:
    """(archive, base commit) of a repository with one faulty module."""
    repo = folder / "repo"
    repo.mkdir(parents=True)
    (repo / "calc.py").write_text(SOURCE)
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "base")
    archive = folder / "repo.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(repo, arcname=".")
    return str(archive), git(repo, "rev-parse", "HEAD").strip()


def test_patch(body: str) -> str:
    """A patch that adds tests/test_calc.py with `body`."""
    lines = body.splitlines()
    added = "".join(f"+{line}\n" for line in lines)
    return (
        "diff --git a/tests/test_calc.py b/tests/test_calc.py\nnew file mode 100644\n--- /dev/null\n"
        f"+++ b/tests/test_calc.py\n@@ -0,0 +1,{len(lines)} @@\n{added}"
    )


test_patch.__test__ = False  # type: ignore[attr-defined]

GOOD_TESTS = (
    "from calc import add, twice\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\n"
    "def test_twice():\n    assert twice(2) == 4\n"
)


def make_task(archive: str, base: str, name: str, *, tests: str = GOOD_TESTS, patch: str = FIX) -> Task:
    return Task(
        instance_id=name,
        problem_statement="add() subtracts",
        repo="local/calc",
        base_commit=base,
        patch=patch,
        test_patch=test_patch(tests),
        fail_to_pass=["tests/test_calc.py::test_add"],
        pass_to_pass=["tests/test_calc.py::test_twice"],
        test_files=["tests/test_calc.py"],
        log_parser="junit",
        archive=archive,
        data_source="local",
    )


def flaky_tests(counter: Path) -> str:
    """Tests whose outcome alternates from run to run (through a file outside the sandbox)."""
    return (
        "from pathlib import Path\n\nfrom calc import add, twice\n\n\n"
        "def test_add():\n    assert add(2, 3) == 5\n\n\ndef test_twice():\n"
        f"    counter = Path({str(counter)!r})\n    count = int(counter.read_text()) if counter.exists() else 0\n"
        "    counter.write_text(str(count + 1))\n    assert twice(2) == 4 and count % 2 == 0\n"
    )


def kinds(folder: Path) -> list[Task]:
    """One task of each kind: good, flaky, wrong gold patch, tests that pass anyway, no gold patch."""
    archive, base = make_archive(folder)
    anyway = GOOD_TESTS.replace("add(2, 3) == 5", "add(3, 0) == 3")
    return [
        make_task(archive, base, "good"),
        make_task(archive, base, "flaky", tests=flaky_tests(folder / "counter")),
        make_task(archive, base, "wrong-gold", patch=WRONG),
        make_task(archive, base, "passes-anyway", tests=anyway),
        make_task(archive, base, "no-gold", patch=""),
    ]
