"""Where synthesis gets a repository from: a folder, an sdist file, or a package on the index that pip is configured for."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from swe_rl.errors import DataError, UsageError

DOWNLOAD_TIMEOUT = 180.0
_PACKAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:==([A-Za-z0-9.!+_-]+))?")
# Nothing that a task needs, and what would make archives large.
LEFT_OUT = {
    "docs",
    "doc",
    "examples",
    "example",
    "benchmarks",
    "benchmark",
    ".github",
    ".git",
    "__pycache__",
    ".circleci",
}
MAX_FILE_BYTES = 400_000


def find_sdist(spec: str, cache: Path) -> Path:
    """The sdist file for `spec`: a path, or NAME[==VERSION] downloaded by pip into `cache` (kept there).

    Raises UsageError for what is neither, DataError where pip cannot get it.
    """
    if Path(spec).is_file():
        return Path(spec)
    match = _PACKAGE.fullmatch(spec)
    if not match:
        raise UsageError(f"--from {spec}: not a folder, not a file, and not a package name (NAME or NAME==VERSION)")
    name, version = match.group(1), match.group(2)
    if version and (cached := cached_sdist(name, version, cache)):
        return cached
    return download_sdist(spec, cache)


def cached_sdist(name: str, version: str, cache: Path) -> Path | None:
    wanted = re.sub(r"[-_.]+", "_", f"{name}-{version}").lower()
    for file in sorted(cache.glob("*.tar.gz")):
        if re.sub(r"[-_.]+", "_", file.name.removesuffix(".tar.gz")).lower() == wanted:
            return file
    return None


def download_sdist(spec: str, cache: Path) -> Path:
    """Let pip download one sdist, from wherever its configuration says."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            folder,
            spec,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT, check=False)
        except subprocess.TimeoutExpired as error:
            raise DataError(
                f"pip did not download {spec} within {DOWNLOAD_TIMEOUT:.0f} s; is there a network?"
            ) from error
        files = [*Path(folder).glob("*.tar.gz")]
        if done.returncode or len(files) != 1:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
            raise DataError(
                f"pip could not download {spec} ({' '.join(lines)[-300:]}); without a network, put its sdist into {cache}"
            )
        return Path(shutil.move(files[0], cache / files[0].name))


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def read_tree(source: Path) -> dict[str, bytes]:
    """The files of a folder or an sdist by relative path, without documentation, links and large files.

    Raises DataError for an archive that is damaged or reaches outside itself.
    """
    pairs = _folder_files(source) if source.is_dir() else _archive_files(source)
    tree = {path: data for path, data in sorted(pairs) if _wanted(path) and len(data) <= MAX_FILE_BYTES}
    if not any(path.endswith(".py") for path in tree):
        raise DataError(f"{source}: no Python files")
    return tree


def _wanted(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return (
        not (LEFT_OUT & set(parts)) and not any(p.endswith((".egg-info", ".pyc")) for p in parts) and path != "PKG-INFO"
    )


def _folder_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and _wanted(path.relative_to(folder).as_posix()):
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _archive_files(file: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                if ".." in parts or member.name.startswith("/"):
                    raise DataError(f"{file}: member {member.name} reaches outside the archive")
                if member.isfile() and len(parts) > 1:
                    stream = archive.extractfile(member)
                    assert stream is not None
                    yield "/".join(parts[1:]), stream.read()
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{file}: not a readable .tar archive: {error}") from error


def write_tree(tree: dict[str, bytes], folder: Path) -> None:
    for path, data in tree.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
