"""History after the base commit: hidden in every form, with the proof that the fix's blob is gone."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import replace

import pytest

from swe_rl.deadline import Deadline
from swe_rl.sandbox.hardening import hide_future
from tests.grading.lab import FIXED, git, write

pytestmark = pytest.mark.timeout(120)


def _copy(lab, folder):
    copy = folder / "copy"
    subprocess.run(["cp", "-a", str(lab.repo), str(copy)], check=True)
    return copy


def _future(copy, how: str) -> str:
    """Put the fix somewhere after the base commit; returns its blob id."""
    base = git(copy, "rev-parse", "HEAD").decode().strip()
    git(copy, "checkout", "-q", "-b", "future")
    write(copy, {"calc.py": FIXED})
    git(copy, "commit", "-q", "-am", "the fix")
    blob = git(copy, "rev-parse", "HEAD:calc.py").decode().strip()
    fix = git(copy, "rev-parse", "HEAD").decode().strip()
    git(copy, "checkout", "-q", "main" if how != "detached HEAD" else base)
    if how == "tag":
        git(copy, "tag", "-a", "v2", "-m", "v2", fix)
    elif how == "notes":
        git(copy, "notes", "add", "-m", "see the fix", "-C", blob, base)
    elif how == "remote":
        git(copy, "remote", "add", "origin", "https://example.org/x.git")
        git(copy, "update-ref", "refs/remotes/origin/main", fix)
        git(copy, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    elif how == "packed refs":
        git(copy, "pack-refs", "--all")
    elif how == "stash":
        write(copy, {"calc.py": FIXED})
        git(copy, "stash", "-q")
    elif how == "worktree":
        git(copy, "worktree", "add", "-q", "--detach", str(copy / "wt"), fix)
        git(copy, "worktree", "prune")
    elif how == "replace":
        git(copy, "replace", f"{base}:calc.py", blob)
    elif how == "HEAD beyond base":
        git(copy, "merge", "-q", "--ff-only", "future")
        git(copy, "commit", "-q", "--allow-empty", "-m", "later")
    if how in ("reflog", "loose"):
        git(copy, "branch", "-D", "-q", "future")
    if how == "packed objects":
        git(copy, "gc", "-q", "--aggressive")
        git(copy, "branch", "-D", "-q", "future")
        (copy / ".git" / "objects" / "pack" / "x.keep").touch()
    if how == "alternates":
        store = copy / ".git" / "other"
        (copy / ".git" / "objects").rename(store)
        (copy / ".git" / "objects" / "info").mkdir(parents=True)
        (copy / ".git" / "objects" / "info" / "alternates").write_text("../other\n")
    return blob


HOW = (
    "tag", "packed objects", "alternates", "branch", "notes", "remote", "packed refs", "stash", "reflog", "loose", "replace",
    "detached HEAD", "worktree",
)  # fmt: skip


@pytest.mark.parametrize("how", HOW)
async def test_fix_cannot_be_read(how, lab, bubblewrap, tmp_path):
    copy = _copy(lab, tmp_path)
    blob = _future(copy, how)
    assert git(copy, "cat-file", "-t", blob) == b"blob\n"
    archive = tmp_path / "future.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(copy, arcname=".")
    task = replace(lab.task, archive=str(archive))
    sandbox = await bubblewrap.open(task, deadline=Deadline(60), purpose="agent")
    assert bubblewrap.counts == {"hidden": 1}
    look = (
        f"git cat-file -e {blob} && echo READ; GIT_OBJECT_DIRECTORY=.git/other git cat-file -e {blob} && echo READ; "
        "git log --all --oneline; git reflog; git remote; git for-each-ref; "
        "git fsck --unreachable --no-reflogs; git status --short"
    )
    result = await sandbox.exec(look, timeout=30)
    assert "READ" not in result.output
    assert "unreachable" not in result.output and "the fix" not in result.output
    assert (await sandbox.exec("git log --oneline | wc -l; git show HEAD:calc.py", timeout=30)).output.startswith("1\n")


async def test_a_submodules_future_cannot_be_read(lab, bubblewrap, tmp_path):
    """Its objects lie in a store of their own below .git/modules, with branches that HEAD does not reach."""
    copy = _copy(lab, tmp_path)
    git(copy, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(lab.repo), "vendor/lib")
    git(copy, "commit", "-q", "-m", "with a submodule")
    base = git(copy, "rev-parse", "HEAD").decode().strip()
    blob = _future(copy / "vendor" / "lib", "packed refs")
    store = copy / ".git" / "modules" / "vendor" / "lib"
    assert git(store, "--git-dir=.", "cat-file", "-t", blob) == b"blob\n"
    archive = tmp_path / "future.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(copy, arcname=".")
    task = replace(lab.task, archive=str(archive), base_commit=base)
    sandbox = await bubblewrap.open(task, deadline=Deadline(60), purpose="agent")
    assert bubblewrap.counts == {"hidden": 1}
    look = (
        f"cd vendor/lib && git cat-file -e {blob} && echo READ; git log --all --oneline; git for-each-ref;"
        "git remote; git reflog; git status --short; git show HEAD:README.md; cd ../..; git status --short; git submodule status"
    )
    output = (await sandbox.exec(look, timeout=30)).output
    assert "READ" not in output and "the fix" not in output and "origin" not in output
    assert "# calc" in output and " M " not in output and "?? " not in output
    await sandbox.close()
    report = await hide_future(await bubblewrap.open(task, deadline=Deadline(60), purpose="grade"), base, timeout=30)
    assert report.state == "clean"


async def test_head_beyond_the_base_keeps_its_files_only(lab, bubblewrap, tmp_path):
    copy = _copy(lab, tmp_path)
    _future(copy, "HEAD beyond base")
    archive = tmp_path / "future.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(copy, arcname=".")
    sandbox = await bubblewrap.open(replace(lab.task, archive=str(archive)), deadline=Deadline(60), purpose="agent")
    log = (await sandbox.exec("git log --format=%s", timeout=30)).output.split("\n")
    assert log[:2] == ["state of the image", "base"]
    assert (await sandbox.exec("git status --short", timeout=30)).output == ""


async def test_a_clean_archive_is_looked_at_once(lab, bubblewrap):
    for _ in range(3):
        await bubblewrap.open(lab.task, deadline=Deadline(60), purpose="agent")
    assert bubblewrap.counts == {"clean": 1}


async def test_failure_is_said(lab, bubblewrap):
    sandbox = await bubblewrap.open(lab.task, deadline=Deadline(60), purpose="agent")
    await sandbox.exec("rm -rf .git", timeout=10)
    report = await hide_future(sandbox, "", timeout=30)
    assert (report.state, report.reason) == ("failed", "no .git folder")
