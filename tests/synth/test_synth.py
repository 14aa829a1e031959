"""The command end to end on a small repository: the same seed gives the same bytes; tests really decide."""

import hashlib
from pathlib import Path

import pytest

from swe_rl.errors import DataError, UsageError
from swe_rl.tasks.load import load_tasks
from swe_rl.tasks.synth import command

CORE = """\
def clamp(value, low, high):
    if value < low:
        return low
    return high if value > high else value


def untested(a, b):
    return a + b


def count(items, wanted):
    total = 0
    for item in items:
        if item == wanted:
            total += 1
    return total
"""
TESTS = """\
from pkg.core import clamp, count


def test_clamp_low():
    assert clamp(1, 2, 5) == 2


def test_clamp_high():
    assert clamp(9, 2, 5) == 5


def test_count():
    assert count([1, 2, 1], 1) == 2
"""


@pytest.fixture
def repository(tmp_path) -> Path:
    folder = tmp_path / "pkg-1.0"
    for name, text in {"pkg/__init__.py": "", "pkg/core.py": CORE, "tests/test_core.py": TESTS}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((folder / "archives").iterdir())}


def test_same_seed_same_tasks_and_only_bugs_that_tests_notice(repository, tmp_path) -> None:
    arguments = ["--from", str(repository), "--count", "6", "--per-function", "4", "--simple", "--seed", "3", "--out"]
    for name in ("one", "two"):
        assert command.main([*arguments, str(tmp_path / name)]) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    one, two = (load_tasks(tmp_path / name / "tasks.jsonl").tasks for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert (a.problem_statement, a.patch, a.base_commit) == (b.problem_statement, b.patch, b.base_commit)
    assert len(one) == 6
    assert {task.metadata["level"] for task in one} == {"L1", "L2", "L3"}
    assert all(task.fail_to_pass and task.pass_to_pass for task in one)
    assert not any(task.metadata["function"] == "untested" for task in one)
    assert len({task.patch for task in one}) == len(one)


def test_a_repository_without_passing_tests_is_refused(repository, tmp_path) -> None:
    (repository / "tests/test_core.py").write_text("import nothing_like_this\n")
    with pytest.raises(DataError, match="no test"):
        command.main(["--from", str(repository), "--out", str(tmp_path / "out")])


def test_usage_errors(tmp_path) -> None:
    with pytest.raises(UsageError, match="L1, L2, L3"):
        command.main(["--from", ".", "--out", str(tmp_path), "--levels", "L9"])
    with pytest.raises(UsageError, match="not a folder"):
        command.main(["--from", "no/such file", "--out", str(tmp_path)])
