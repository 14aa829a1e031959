"""The patch that comes out of an agent's sandbox: byte-exact, whatever the agent did to its repository."""

from __future__ import annotations

import pytest

from swe_rl.deadline import Deadline
from swe_rl.grading.patch_extract import extract_patch
from swe_rl.grading.patch_files import split_patch
from swe_rl.types import Verdict
from tests.grading.lab import FIXED, git

FIX = "sed -i 's/result -= number/result += number/' calc.py"


@pytest.fixture
async def after(lab, bubblewrap):
    """The patch after an agent's commands."""

    async def run(commands, *, task=lab.task, **kwargs):
        sandbox = await bubblewrap.open(task, deadline=Deadline(60), purpose="agent")
        result = await sandbox.exec(commands, timeout=60)
        patch = await extract_patch(task, sandbox, timeout=60, **kwargs)
        await sandbox.close()
        return patch, result

    return run


def touched(patch):
    return sorted(path for section in split_patch(patch) for path in section.paths)


async def test_everything_an_agent_can_do_to_files(after, lab, tmp_path):
    patch, _ = await after(
        f"{FIX}; git commit -qam fix; printf 'new' > new.txt; git add new.txt; rm crlf.txt; git mv pkg/text.py pkg/words.py;"
        "printf 'one\\r\\nTWO' > added.txt; head -c 3000 /dev/zero > data.bin; chmod -x run.sh; ln -s calc.py l;"
        "printf x > $'na\\xefve \\t\"q\".txt'; git checkout -q -b other; git reset -q --hard HEAD~0; "
        "printf 'new' > new2.txt; rm -f README.md; mkdir -p a/b; echo deep > a/b/c.txt"
    )
    assert "calc.py" in touched(patch) and "a/b/c.txt" in touched(patch) and "README.md" in touched(patch)
    # The proof of exactness: applied to a pristine copy, it gives the agent's tree.
    copy = lab.patch(lambda root: git(root, "apply", data=patch) and None, "--no-renames")
    assert sorted(section.data for section in split_patch(copy)) == sorted(
        section.data for section in split_patch(patch)
    )


async def test_bytes_are_exact(after, lab):
    text = "printf 'a\\r\\nb\\xff\\0c' > odd.bin; printf 'no newline' > plain.txt"
    patch, _ = await after(text)
    expected = lab.files({"odd.bin": b"a\r\nb\xff\0c", "plain.txt": b"no newline"})
    assert patch == expected


async def test_junk_and_ignored_files_are_left_out(after):
    patch, _ = await after(
        f"{FIX}; mkdir -p build node_modules/x x.egg-info __pycache__ .pytest_cache; echo > build/a; echo > node_modules/x/a.js;"
        "echo > x.egg-info/PKG; echo > __pycache__/a.pyc; echo > .pytest_cache/b; echo > run.log; git add -f build run.log;"
        "rm .gitignore; git init -q nested; echo > nested/file"
    )
    assert touched(patch) == [".gitignore", "calc.py"]


@pytest.mark.parametrize(
    "trick",
    [
        "git config diff.noprefix true; git config color.ui always; git config core.quotePath false",
        "git config diff.external 'echo evil'; git config core.fsmonitor 'echo evil'; git config core.pager 'rm -rf .'",
        "git config filter.x.clean 'echo evil'; echo '*.py filter=x -diff' > .git/info/attributes",
        "echo 'calc.py' >> .git/info/exclude; git update-index --assume-unchanged calc.py",
        "git update-index --skip-worktree calc.py; rm -f .git/index; echo broken > .git/index",
        "git rm -q --cached calc.py; git add -A; git commit -qm all",
        "git commit -qam fix; git replace HEAD~1 HEAD; git replace $(git rev-parse HEAD~0:calc.py) $(git hash-object README.md)",
        "echo '[broken' > .git/config; rm -rf .git/hooks .git/refs; echo nowhere > .git/HEAD",
        "git checkout -q --orphan fresh; git commit -qam one; git branch -D -q main; git reflog expire --expire=now --all",
        "git stash -q; git stash pop -q; git worktree add -q /tmp/wt; git gc -q",
        "export GIT_DIR=/tmp; printf 'alias git=false' > ~/.bashrc; git config --global core.hooksPath /tmp",
    ],
)
async def test_settings_of_the_agent_make_no_difference(trick, after, lab):
    patch, result = await after(f"{FIX}; {trick}")
    assert patch == lab.files({"calc.py": FIXED}), result.output


@pytest.mark.parametrize(
    "trick",
    [
        "rm -rf .git",
        "rm -rf .git; git init -q .; git add -A; git commit -qm all",
        "rm -rf .git/objects",
    ],
)
async def test_a_destroyed_repository_is_compared_with_the_archive(trick, after, lab):
    patch, _ = await after(f"{FIX}; {trick}")
    assert patch == lab.files({"calc.py": FIXED})


async def test_nothing_changed_is_empty(after):
    assert (await after("git status; echo > build.log; mkdir -p build; echo > build/x"))[0] == b""


async def test_size_is_bounded_and_rejected_by_the_grader(after, grade, lab):
    patch, _ = await after("yes | head -c 400000 > big.txt", max_bytes=100_000)
    assert len(patch) == 100_001
    assert (await grade(lab.task, patch, swe_max_patch_bytes=100_000)).verdict is Verdict.PATCH_REJECTED


async def test_extracted_patch_is_graded_resolved(after, grade, lab):
    patch, _ = await after(f"{FIX}; git commit -qam done; echo junk > junk.log")
    result = await grade(lab.task, patch)
    assert result.verdict is Verdict.RESOLVED and result.detail["applied_by"] == "git-apply"
