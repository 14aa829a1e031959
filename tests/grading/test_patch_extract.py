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


async def test_a_file_of_five_mebibytes_beside_the_fix_is_graded(after, grade, lab):
    patch, _ = await after(f"{FIX}; head -c 5242880 /dev/urandom > five.bin")
    assert touched(patch) == ["calc.py", "five.bin"]
    assert (await grade(lab.task, patch)).verdict is Verdict.RESOLVED


@pytest.mark.parametrize("name", ["mktemp", "find", "stat"])
async def test_programs_that_are_gone_cost_the_agent_nothing_or_its_patch(name, lab, without):
    assert await without(f"{FIX}", name) in (lab.files({"calc.py": FIXED}), b"")


@pytest.mark.parametrize("name", ["git", "base64", "grep", "head", "mkdir", "env"])
async def test_a_sandbox_that_answers_is_not_lost(name, without):
    """Where the agent took away what a patch is made with, it has no patch: that is no fault of the infrastructure."""
    assert isinstance(await without(FIX, name), bytes)


async def test_a_sandbox_that_lives_but_stalls_git_has_no_patch(lab, without):
    assert await without(FIX, "git", does="sleep 60", seconds=3) == b""


@pytest.fixture
async def without(lab, bubblewrap, monkeypatch):
    """The patch where a program is another one, which does nothing by default."""

    async def run(commands, name, *, does="exit 127", seconds=60):
        sandbox = await bubblewrap.open(lab.task, deadline=Deadline(60), purpose="agent")
        await sandbox.exec(
            f"{commands}; mkdir -p /tmp/bin; printf '#!/bin/sh\\n{does}\\n' > /tmp/bin/{name}; chmod +x /tmp/bin/{name}",
            timeout=60,
        )
        plain = sandbox.exec

        async def changed(script, **kwargs):  # as a root that exchanges files of the image
            return await plain("PATH=/tmp/bin:$PATH; " + script, **kwargs)

        monkeypatch.setattr(sandbox, "exec", changed)
        return await extract_patch(lab.task, sandbox, timeout=seconds)

    return run


@pytest.mark.parametrize(
    "trick",
    [
        "truncate -s 400M big.bin",
        "truncate -s 400M calc.py",
        "mkdir many; cd many; for i in $(seq 60); do truncate -s 8M $i.bin; done",
        "mkdir many; cd many; seq 12000 | xargs touch",
    ],
)
async def test_what_git_would_hash_for_ever_is_answered_as_an_oversized_patch(trick, after, grade, lab):
    patch, _ = await after(f"{FIX}; {trick}", max_bytes=1_000_000)
    assert len(patch) == 1_000_001
    assert (await grade(lab.task, patch, swe_max_patch_bytes=1_000_000)).verdict is Verdict.PATCH_REJECTED


@pytest.mark.parametrize(
    "trick",
    [
        "mkfifo pkg/.gitignore pkg/.gitattributes fifo",
        "mkfifo .git/objects/pack/pack-1.idx; echo > .git/objects/pack/pack-1.pack",
        "mkfifo .git/objects/info/alternates; ln -s /dev/zero pkg/.gitignore",
        "truncate -s 400M run.log; mkdir build; truncate -s 400M build/x",
    ],
)
async def test_what_stalls_git_does_not_stall_the_patch(trick, after, lab):
    patch, result = await after(f"{FIX}; {trick}")
    assert patch == lab.files({"calc.py": FIXED}), result.output


async def test_extracted_patch_is_graded_resolved(after, grade, lab):
    patch, _ = await after(f"{FIX}; git commit -qam done; echo junk > junk.log")
    result = await grade(lab.task, patch)
    assert result.verdict is Verdict.RESOLVED and result.detail["applied_by"] == "git-apply"
