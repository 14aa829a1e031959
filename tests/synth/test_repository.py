"""Archives are the same bytes every time and hold neither tests nor the fixed file."""

import hashlib
import subprocess
import tarfile

from swe_rl.tasks.synth.repository import build_archive, change_patch, git, hidden_tree, new_files_patch

TREE = {
    "pkg/__init__.py": b"",
    "pkg/core.py": b"def f(a, b):\n    return a < b\n",
    "tests/test_core.py": b"from pkg.core import f\n\n\ndef test_f():\n    assert f(1, 2)\n",
    "tests/empty.txt": b"",
    "tests/no_newline.txt": b"last",
}
BUGGY = "def f(a, b):\n    return a > b\n"


def digest(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_same_tree_same_bytes(tmp_path) -> None:
    tree = hidden_tree(TREE, "pkg/core.py", BUGGY)
    one = build_archive(tree, tmp_path / "one.tar")
    two = build_archive(tree, tmp_path / "two.tar")
    assert one == two
    assert digest(tmp_path / "one.tar") == digest(tmp_path / "two.tar")
    assert build_archive(TREE, tmp_path / "three.tar") != one


def test_neither_tests_nor_the_fix_are_inside(tmp_path) -> None:
    build_archive(hidden_tree(TREE, "pkg/core.py", BUGGY), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "repo", filter="data")
    repo = tmp_path / "repo"
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "rev-list", "--all", "--count") == "1"
    assert not (repo / "tests").exists()
    blobs = git(repo, "cat-file", "--batch-check", "--batch-all-objects", "--unordered")
    fixed = hashlib.sha1(b"blob %d\0" % len(TREE["pkg/core.py"]) + TREE["pkg/core.py"]).hexdigest()
    buggy = hashlib.sha1(b"blob %d\0" % len(BUGGY) + BUGGY.encode()).hexdigest()
    assert buggy in blobs
    assert fixed not in blobs


def test_patches_apply(tmp_path) -> None:
    build_archive(hidden_tree(TREE, "pkg/core.py", BUGGY), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "repo", filter="data")
    patch = change_patch("pkg/core.py", BUGGY, TREE["pkg/core.py"].decode())
    patch += new_files_patch(TREE, ["tests/empty.txt", "tests/no_newline.txt", "tests/test_core.py"])
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path / "repo", check=True, timeout=30)
    for name, data in TREE.items():
        assert (tmp_path / "repo" / name).read_bytes() == data


ODD = 'def f(a):\n    return "\u2028\x0c\x1c" + a\n\x0c\n\ndef g(a):\r\n    return a + "\x85"\n'


def test_lines_end_at_newlines_only(tmp_path) -> None:
    """Form feeds, CRLF and Unicode's line separators are ordinary characters of a line, for git as for Python."""
    tree = {
        **TREE,
        "pkg/core.py": ODD.replace("+ a", "- a").encode(),
        "tests/test_crlf.py": ODD.replace("\n", "\r\n").encode(),
    }
    build_archive(hidden_tree(tree, "pkg/core.py", ODD), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "repo", filter="data")
    patch = change_patch("pkg/core.py", ODD, tree["pkg/core.py"].decode())
    assert "No newline" not in patch
    patch += new_files_patch(tree, [name for name in tree if name.startswith("tests/")])
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path / "repo", check=True, timeout=30)
    for name, data in tree.items():
        assert (tmp_path / "repo" / name).read_bytes() == data
