"""A task's repository as an archive: one commit, no history, no tests, and the same bytes every time it is built."""

from __future__ import annotations

import difflib
import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from swe_rl.errors import DataError
from swe_rl.tasks.synth.layout import is_test_file
from swe_rl.tasks.synth.source import write_tree

IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "swe-rl"), ("EMAIL", "swe-rl@localhost"), ("DATE", "2024-01-01T00:00:00+0000"))
}
EPOCH = 1704067200  # the same instant, for the archive's entries


def hidden_tree(tree: dict[str, bytes], path: str, source: str) -> dict[str, bytes]:
    """What the agent gets: `tree` with `path` replaced by the buggy `source`, and without tests."""
    return {name: data for name, data in tree.items() if not is_test_file(name)} | {path: source.encode()}


def build_archive(tree: dict[str, bytes], target: Path) -> str:
    """Write `tree` as a tar of a git repository with one commit; returns the commit. Equal trees give equal bytes."""
    with tempfile.TemporaryDirectory(prefix="swe-rl-repo-") as name:
        folder = Path(name)
        write_tree(tree, folder)
        git(folder, "init", "--quiet", "--template=", "--initial-branch=main")
        git(folder, "add", "--all", "--force")
        commit = git(folder, "commit-tree", "-m", "Base", git(folder, "write-tree"))
        git(folder, "update-ref", "refs/heads/main", commit)
        (folder / ".git" / "index").unlink()
        git(folder, "read-tree", "HEAD")  # an index without the times and inodes of this machine
        for log in (folder / ".git" / "logs").rglob("*"):
            if log.is_file():
                log.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_suffix(f".{os.getpid()}.tmp")
        with tarfile.open(beside, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(folder.rglob("*")):
                _add(archive, path, path.relative_to(folder).as_posix())
        beside.replace(target)
        return commit


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = EPOCH
    entry.mode = 0o755 if path.is_dir() else 0o644
    if path.is_dir():
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    else:
        data = path.read_bytes()
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))


def git(folder: Path, *arguments: str) -> str:
    """Run git in `folder` with a fixed identity and none of the user's settings. Raises DataError if it fails."""
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **IDENTITY}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise DataError(f"git {arguments[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def why_not_text(data: bytes) -> str:
    """Why `data` cannot be part of a patch as text; "" where it can."""
    try:
        return "it holds a NUL" if "\0" in data.decode() else ""
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {data[error.start]:#04x} at {error.start})"


def lines_of(text: str) -> list[str]:
    """The lines of `text` with their ends, as git sees them: only a newline ends one (`str.splitlines` knows ten more)."""
    return list(io.StringIO(text, newline="\n"))


def new_files_patch(tree: dict[str, bytes], paths: list[str]) -> str:
    """A diff that adds the text files `paths`; files that are no text are left out."""
    parts = []
    for path in paths:
        if why_not_text(tree[path]):
            continue
        parts.append(f"diff --git a/{path} b/{path}\nnew file mode 100644\n")
        if lines := lines_of(tree[path].decode()):
            parts.append(f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n")
            parts += [f"+{line}" for line in lines]
            parts.append("" if lines[-1].endswith("\n") else "\n\\ No newline at end of file\n")
    return "".join(parts)


def change_patch(path: str, before: str, after: str) -> str:
    """The gold patch: a unified diff of one file."""
    lines = difflib.unified_diff(lines_of(before), lines_of(after), f"a/{path}", f"b/{path}", n=3)
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return f"diff --git a/{path} b/{path}\n{text}"
