"""A small image (bash, git, Python, pytest) made of this machine's own files, for where no registry can be reached.

The quickstart's tasks and the tests of the sandbox plane run in it. Only programs, their libraries, the system Python's
standard library and pytest's own distributions go in: nothing of this checkout and no other installed package.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from packaging.requirements import Requirement

from swe_rl.errors import SandboxUnavailable
from swe_rl.sandbox.container.engine import Engine, typed_errors

DEFAULT_TAG = "swe-rl/quickstart:local"
PINNED_LABEL = "swe-rl.pinned"
PROGRAMS = [
    "bash", "sh", "env", "ls", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "ln", "chmod", "chown", "touch", "head",
    "tail", "sort", "uniq", "wc", "cut", "tr", "tee", "sed", "grep", "egrep", "fgrep", "find", "xargs", "awk",
    "diff", "cmp", "patch", "tar", "gzip", "gunzip", "id", "whoami", "hostname", "uname", "date", "sleep",
    "timeout", "kill", "pwd", "echo", "printf", "test", "[", "true", "false", "seq", "expr", "basename",
    "dirname", "readlink", "realpath", "mktemp", "mkfifo", "stat", "du", "df", "dd", "sha256sum", "md5sum",
    "base64", "nproc", "ps", "pgrep", "pkill", "yes", "sync", "nohup", "setsid", "which", "install", "less", "nl",
    "paste", "comm", "join", "od", "git",
]  # fmt: skip
SKIPPED_STDLIB = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "__pycache__", "site-packages"}
ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "nsswitch.conf": "hosts: files dns\n",
    "gitconfig": "[safe]\n\tdirectory = *\n[user]\n\tname = agent\n\temail = agent@localhost\n"
    "[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n",
    "profile": "export PATH=/usr/local/bin:/usr/bin:/usr/sbin\n",
}
EMPTY_FOLDERS = ["root", "home", "home/agent", "testbed", "proc", "sys", "dev", "run", "var", "var/tmp", "tmp", "etc"]


def in_image(path: Path) -> Path:
    """Where a host file lives in the image: its folder without links (so /bin becomes /usr/bin where they are one)."""
    return Path(os.path.realpath(path.parent)) / path.name


def link_chain(path: Path) -> Iterator[Path]:
    """`path` and everything it links to, each at its real folder."""
    for _ in range(10):
        path = in_image(path)
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


def shared_libraries(binaries: list[Path]) -> set[Path]:
    """The libraries and loaders that the dynamic binaries need, by ldd."""
    found: set[Path] = set()
    for binary in binaries:
        listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, timeout=30, check=False)
        found.update(Path(name) for name in re.findall(r"(?:=> )?(/\S+) \(0x", listed.stdout))
    return found


def pytest_files() -> Iterator[tuple[Path, str]]:
    """(host file, path below site-packages) of pytest and what it requires, from the running environment."""
    wanted, seen = ["pytest"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        dist = importlib.metadata.distribution(name)
        for text in dist.requires or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                wanted.append(need.name)
        for file in dist.files or []:
            if not str(file).startswith("..") and not str(file).endswith(".pyc"):
                yield Path(str(dist.locate_file(file))), str(file)


def system_python() -> tuple[Path, Path]:
    """(interpreter, standard library): the distribution's Python where it fits the running version, else the running one."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    binary, stdlib = Path(f"/usr/bin/python{version}"), Path(f"/usr/lib/python{version}")
    if binary.exists() and (stdlib / "json").is_dir():
        return binary, stdlib
    return Path(os.path.realpath(sys.executable)), Path(sysconfig.get_path("stdlib"))


def image_files() -> dict[str, Path]:
    """{path in the image: host file} of programs, libraries, Python and pytest."""
    search = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    programs = [Path(p) for name in PROGRAMS if (p := shutil.which(name, path=search))]
    if missing := {"bash", "git", "setsid", "dd"} - {p.name for p in programs}:
        raise SandboxUnavailable(
            f"this machine lacks {', '.join(sorted(missing))}: install them to build the local image"
        )
    python, stdlib = system_python()
    extensions = list((stdlib / "lib-dynload").glob("*.so"))
    binaries = [Path(os.path.realpath(p)) for p in programs] + [python, *extensions]
    git_core = Path(subprocess.check_output(["git", "--exec-path"], text=True).strip())
    helpers = [p for p in git_core.iterdir() if p.is_symlink() or p.name in ("git", "git-sh-setup", "git-sh-i18n")]
    files: dict[str, Path] = {}
    for path in [*programs, python, *helpers, *shared_libraries(binaries)]:
        files.update({str(p).lstrip("/"): p for p in link_chain(path)})
    for folder in (stdlib, Path("/usr/share/git-core/templates")):
        for path in folder.rglob("*"):
            inside = path.relative_to(folder).parts
            skipped = SKIPPED_STDLIB.intersection(inside) or inside[0].startswith(
                ("config-", "EXTERNALLY", "sitecustom")
            )
            if path.is_file() and not skipped:
                files[str(in_image(path)).lstrip("/")] = path
    site = stdlib / "site-packages" if "site-packages" in sysconfig.get_path("purelib") else stdlib
    site = Path("usr/local/lib") / stdlib.name / "dist-packages" if str(stdlib).startswith("/usr/lib/") else site
    files.update({f"{str(site).lstrip('/')}/{name}": path for path, name in pytest_files()})
    return files


def write_tar(out: IO[bytes]) -> None:
    """Write the image's root file system as an uncompressed tar; owners are root, times are kept at zero."""
    python, _ = system_python()
    with tarfile.open(fileobj=out, mode="w|") as tar:

        def add(name: str, kind: bytes, mode: int, data: bytes = b"", target: str = "") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.size, info.linkname = kind, mode, len(data), target
            tar.addfile(info, io.BytesIO(data))

        for folder in EMPTY_FOLDERS:
            add(folder, tarfile.DIRTYPE, 0o1777 if folder.endswith("tmp") else 0o755)
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/" + name).is_symlink():
                add(name, tarfile.SYMTYPE, 0o777, target=f"usr/{name}")
        for name, text in ETC.items():
            add(f"etc/{name}", tarfile.REGTYPE, 0o644, text.encode())
        for name, path in sorted(image_files().items()):
            if path.is_symlink():
                add(name, tarfile.SYMTYPE, 0o777, target=str(path.readlink()))
            else:
                add(name, tarfile.REGTYPE, 0o755 if os.access(path, os.X_OK) else 0o644, path.read_bytes())
        for name in ("python3", "python"):
            add(f"usr/local/bin/{name}", tarfile.SYMTYPE, 0o777, target=str(python))


async def build_local_image(docker_host: str, tag: str = DEFAULT_TAG, *, timeout: float = 300.0) -> str:
    """Import the image into the engine at `docker_host` (unix:///path or tcp://host:port) and return `tag`.

    Raises SandboxError kinds when the engine refuses it or does not answer within `timeout` seconds.
    """
    params = [("fromSrc", "-"), ("repo", tag)]  # the tag with it: Podman looks at no field of its own for that
    changes = ["WORKDIR /testbed", 'CMD ["bash"]', "ENV PATH=/usr/local/bin:/usr/bin:/usr/sbin", "ENV LANG=C.UTF-8"]
    params += [("changes", line) for line in [*changes, "ENV PYTHONDONTWRITEBYTECODE=1", f"LABEL {PINNED_LABEL}=true"]]
    engine, what = Engine(docker_host), f"the engine at {docker_host} refused the image {tag}"
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(write_tar, file)
        file.seek(0)
        try:
            with typed_errors(what):
                async with engine.raw("POST", "images/create", params, data=file, timeout=timeout) as answer:
                    text = await answer.text()
        finally:
            await engine.aclose()
    if '"error"' in text:
        raise SandboxUnavailable(f"{what}: {text.strip()[-500:]}")
    return tag


def main(argv: list[str] | None = None) -> int:
    """`python -m swe_rl.sandbox.container.local_image [--tag TAG] [--host unix:///...]`."""
    parser = argparse.ArgumentParser(prog="local_image", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tag", default=DEFAULT_TAG, help="name of the image (default %(default)s)")
    parser.add_argument("--host", default=os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    args = parser.parse_args(argv)
    print(asyncio.run(build_local_image(args.host, args.tag)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
