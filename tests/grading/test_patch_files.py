"""Reading patches: which files, which modes, which paths are refused; policy's settings; from bytes alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from swe_rl.agent.replay_steps import read_trajectory
from swe_rl.config.grading import GradingSettings
from swe_rl.grading.graders_files import graders_files
from swe_rl.grading.patch_files import PatchFormatError, plain_patch, split_patch, unsafe_paths
from swe_rl.grading.patch_policy import apply_policy
from swe_rl.tasks.load import load_tasks
from swe_rl.types import Task, Verdict
from tests.grading.attacks import HONEST, new_file
from tests.grading.lab import FIXED


@pytest.mark.parametrize("attack", HONEST, ids=lambda attack: attack.name)
def test_sections_put_together_are_the_patch(attack, lab):
    patch = attack.patch(lab)
    assert b"".join(section.data for section in split_patch(patch)) == patch


def test_names_modes_and_kinds(lab):
    def edit(root):
        (root / "data.bin").write_bytes(b"\0" * 9)
        (root / "run.sh").chmod(0o644)
        (root / "README.md").unlink()
        (root / "pkg/text.py").rename(root / "pkg/a b ü.py")
        (root / "l2").symlink_to("calc.py")

    sections = {section.paths[-1]: section for section in split_patch(lab.patch(edit, "-M"))}
    assert sections["data.bin"].binary and (sections["run.sh"].old_mode, sections["run.sh"].new_mode) == (
        "100755",
        "100644",
    )
    assert sections["README.md"].new is None and sections["README.md"].created is None
    assert sections["pkg/a b ü.py"].old == "pkg/text.py"
    assert sections["l2"].new_mode == "120000" and sections["l2"].content == b"calc.py"


def test_a_hunk_line_that_looks_like_a_header_is_none():
    patch = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/tests/t.py\n+++ b/tests/t.py\n diff --git a/y b/y\n"
    assert [section.paths for section in split_patch(patch)] == [["x"]]


@pytest.mark.parametrize(
    "data", [b"", b"hello\n", b"diff --git\n", b"diff --git a b c d\n", b"@@ -1 +1 @@\n", b"--- a/x\n"]
)
def test_what_is_no_patch(data):
    with pytest.raises(PatchFormatError):
        split_patch(data)


@pytest.mark.parametrize(
    "words", [("rename old", "rename new"), ("rename from", "rename to"), ("copy from", "copy to")]
)
def test_every_word_for_a_new_path(words):
    head = b"diff --git a/README.md b/README.md\n%s README.md\n%s pytest.py\n" % tuple(word.encode() for word in words)
    section = split_patch(head + b"@@ -1 +1 @@\n-x\n+y\n")[0]
    assert (section.paths, section.created) == (["README.md", "pytest.py"], "pytest.py")


@pytest.mark.parametrize("prefixes", [(b"a", b"b"), (b"old", b"new"), (b"x", b"x")])
def test_the_first_folder_is_no_part_of_a_name(prefixes):
    assert split_patch(b"--- %s/p/c.py\n+++ %s/p/c.py\n@@ -1 +1 @@\n-x\n+y\n" % prefixes)[0].paths == ["p/c.py"]
    assert split_patch(b"diff --git %s/p/c.py %s/p/c.py\nold mode 100644\nnew mode 100755\n" % prefixes)[0].paths == [
        "p/c.py"
    ]


def test_for_patch_there_are_hunks_alone():
    patch = (
        b"note\n--- a/README.md\n+++ b/README.md\n@@ -1 +1,2 @@\n # calc\n+x\n\\ No newline at end of file\n"
        b"*** /dev/null\n--- b/conftest.py\n***************\n  --- a/x\n  +++ b/x\n  @@ -0,0 +1 @@\n  +x\nIndex: pytest.ini\n"
    )
    assert plain_patch(split_patch(patch)) == (
        b"diff --git a/README.md b/README.md\n--- a/README.md\t\n+++ b/README.md\t\n@@ -1 +1,2 @@\n # calc\n+x\n"
        b"\\ No newline at end of file\n"
    )
    for odd in (b"GIT binary patch\nliteral 0\n", b"new file mode 100644\n"):
        assert plain_patch(split_patch(patch + b"diff --git a/x b/x\n" + odd)) == b""


def test_rubbish_never_raises_anything_else(lab):
    dice = random.Random(7)
    patch = lab.task.patch.encode()
    for _ in range(500):
        data = bytearray(patch)
        for _ in range(dice.randrange(1, 12)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        result = apply_policy(lab.task, bytes(data), GradingSettings())
        assert result.verdict in (None, Verdict.PATCH_REJECTED, Verdict.NO_PATCH)


@pytest.mark.parametrize(
    "path",
    [
        b"../x",
        b"/etc/x",
        b"a/../../x",
        b".git/config",
        b"a/.git/hooks/x",
        b".GIT/x",
        b"git~1/x",
        b"C:\\x",
        b"a/.git. /x",
    ],
)
def test_unsafe_paths(path):
    assert unsafe_paths(split_patch(new_file(path)))


@pytest.mark.parametrize("path", [b".gitignore", b".github/workflows/x.yml", b"a..b", b"a/...", b"gitx/y", b"a b"])
def test_paths_that_are_fine(path):
    assert unsafe_paths(split_patch(new_file(path))) == []


def test_policy_names_what_it_leaves_out(lab):
    patch = lab.files(
        {
            "calc.py": FIXED,
            "tests/test_shout.py": "",
            "pkg/test_new.py": "",
            "conftest.py": "",
            "pkg/__pycache__/a.pyc": b"\0",
        }
    )
    result = apply_policy(lab.task, patch, GradingSettings())
    assert result.verdict is None and result.detail() == {
        "files": ["calc.py", "pkg/test_new.py"],
        "test_files_left_out": ["tests/test_shout.py"],
        "config_files_left_out": ["conftest.py"],
        "junk_left_out": ["pkg/__pycache__/a.pyc"],
    }
    everything = apply_policy(lab.task, patch, GradingSettings(swe_test_patch_policy_scope="all_tests"))
    assert everything.files == ["calc.py"] and "pkg/test_new.py" in everything.test_files
    strict = apply_policy(lab.task, patch, GradingSettings(swe_strict_no_config_patch=True))
    assert strict.verdict is Verdict.TAMPERED and "conftest.py" in strict.reason


def test_files_of_the_gold_patch_are_allowed(lab):
    patch = lab.files({"setup.cfg": "[metadata]\n", "tests/test_shout.py": ""})
    gold = replace(lab.task, patch=lab.files({"setup.cfg": "[x]\n"}).decode())
    result = apply_policy(gold, patch, GradingSettings(swe_strict_no_config_patch=True))
    assert result.verdict is None and result.files == ["setup.cfg"]


def test_the_graders_files(lab):
    assert graders_files(lab.task) == ["tests/test_calc.py", "tests/test_shout.py"]


def test_real_patches_of_agents(cases):
    """47 patches of real evaluations, 17 submissions of real transcripts: none refused, no byte lost, no file missed."""
    rows = {task.instance_id: task for task in load_tasks(cases / "swebench_lite_80.jsonl").tasks}
    patches = [(path.parent.name, path.read_bytes()) for path in sorted(cases.glob("evaluations/*/patch.diff"))]
    for path in sorted(cases.glob("trajectories/*.traj.json")):
        patches.append((path.name.removesuffix(".traj.json"), read_trajectory(path).patch.encode()))
    assert len(patches) == 64
    for name, patch in patches:
        task = rows.get(name) or Task(name, "s")
        sections = split_patch(patch)
        assert b"".join(section.data for section in sections) == patch
        named = {line.split(b" b/")[-1].decode() for line in patch.split(b"\n") if line.startswith(b"diff --git ")}
        assert {section.paths[-1] for section in sections} == named
        result = apply_policy(task, patch, GradingSettings())
        assert result.verdict is None, (name, result)
        assert set(result.files + result.test_files + result.config_files + result.junk_files) >= named
        if len(result.files) == len(named):
            assert result.patch == patch
