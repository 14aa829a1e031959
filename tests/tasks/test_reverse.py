"""Reversed patches, checked with git itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from swe_rl.tasks.reverse import reverse_patch
from tests.tasks.local_tasks import git


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def tree(folder: Path) -> str:
    git(folder, "add", "-A")
    return git(folder, "write-tree").strip()


@pytest.mark.parametrize("seed", range(12))
def test_git_agrees(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    git(tmp_path, "init", "-q")
    words = [f"-- w{i}" if i % 7 == 0 else f"++ w{i}" if i % 5 == 0 else f"w{i}" for i in range(60)]
    write(
        tmp_path,
        {"a.py": "\n".join(words) + "\n", "dir/gone.py": "x\ny\n", "moved.py": "m\n" * 40, "end.py": "no newline"},
    )
    before = tree(tmp_path)
    git(tmp_path, "commit", "-q", "-m", "before")
    for _ in range(6):
        at = rng.randrange(len(words))
        words[at : at + rng.randrange(3)] = rng.choices(["new", "-- new", "++ new", ""], k=rng.randrange(3))
    (tmp_path / "dir/gone.py").unlink()
    (tmp_path / "moved.py").rename(tmp_path / "there.py")
    write(tmp_path, {"a.py": "\n".join(words) + "\n" * (seed % 2), "fresh.py": "f\n", "end.py": "no newline at all"})
    (tmp_path / "a.py").chmod(0o755)
    tree(tmp_path)
    patch = git(tmp_path, "diff", "--cached", "-M", "--no-color")
    assert "rename from" in patch and "old mode" in patch and "No newline" in patch
    reversed_patch = reverse_patch(patch)
    (tmp_path / ".git" / "r.diff").write_text(reversed_patch)
    git(tmp_path, "apply", "--index", ".git/r.diff")
    assert tree(tmp_path) == before
    assert reverse_patch(reversed_patch) == patch


def test_what_cannot_be_reversed_as_text() -> None:
    with pytest.raises(ValueError, match="binary"):
        reverse_patch("GIT binary patch\n")
    with pytest.raises(ValueError, match="copies"):
        reverse_patch("copy from a\ncopy to b\n")
