"""What a bubblewrap sandbox may see of the host: programs and one bare Python; never site-packages or home folders."""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from pathlib import Path

from swe_rl.sandbox.owned_folder import process_record

TOOLS_MOUNT = "/opt/tools"
_ETC_COPIES = (
    "ld.so.cache",
    "ld.so.conf",
    "alternatives",
    "localtime",
    "mime.types",
    "services",
    "protocols",
    "resolv.conf",
)
_PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\nagent:x:{uid}:{uid}::/home/agent:/bin/bash\nnobody:x:65534:65534::/:/bin/sh\n"
)
# Ownership is checked by the kernel here, not by git; commits need a name.
_GITCONFIG = (
    "[safe]\n\tdirectory = *\n[user]\n\tname = agent\n\temail = agent@sandbox\n[init]\n\tdefaultBranch = main\n"
)


def make_etc(boxes: Path) -> Path:
    """A small /etc in a folder on record as this process's, so that a crashed run's copy is swept too."""
    folder = boxes / f"{os.getpid()}-etc-{uuid.uuid4().hex[:8]}"
    new = boxes / f".new-{folder.name}"
    etc = new / "etc"
    etc.mkdir(parents=True)
    etc.chmod(0o755)
    (new / "owner.json").write_text(json.dumps(process_record()))
    (etc / "passwd").write_text(_PASSWD.format(uid=os.getuid() or 1000))
    (etc / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (etc / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (etc / "gitconfig").write_text(_GITCONFIG)
    for name in _ETC_COPIES:
        source = Path("/etc") / name
        if source.is_dir():
            shutil.copytree(source, etc / name, symlinks=True)
        elif source.exists():
            shutil.copy(source, etc / name)
    (etc / "ssl" / "certs").mkdir(parents=True)  # a mount point
    for path in etc.rglob("*"):  # whatever the umask here: the sandbox's user reads them
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    new.rename(folder)
    return folder / "etc"


def system_mounts(tools_env: Path, etc: Path) -> list[str]:
    """bwrap's arguments for the read-only part of the sandbox."""
    mounts = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            mounts += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            mounts += ["--ro-bind", str(path), str(path)]
    for folder in (*_package_folders(Path("/usr")), Path("/usr/local"), Path("/usr/src")):
        if folder.is_dir():
            mounts += ["--tmpfs", str(folder)]
    mounts += _python_mounts(tools_env)
    mounts += ["--ro-bind", str(etc), "/etc"]
    if Path("/etc/ssl/certs").is_dir():
        mounts += ["--ro-bind", "/etc/ssl/certs", "/etc/ssl/certs"]
    mounts += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
    return [*mounts, *parents(TOOLS_MOUNT), "--ro-bind", str(tools_env), TOOLS_MOUNT]


def parents(target: str) -> list[str]:
    """Make the folders above a mount point readable: bwrap itself would make them with mode 0700."""
    above = [str(path) for path in reversed(Path(target).parents) if path != Path("/")]
    return [argument for path in above for argument in ("--dir", path)]


def _python_mounts(tools_env: Path) -> list[str]:
    """The interpreter that the tools environment links to: its program and standard library, its site-packages empty."""
    program = Path(os.path.realpath(tools_env / "bin" / "python"))
    prefix = program.parent.parent
    if prefix == Path("/usr"):
        return []
    mounts = [*parents(str(program)), "--ro-bind", str(program), str(program)]
    mounts += ["--ro-bind", str(prefix / "lib"), str(prefix / "lib")]
    # pyvenv.cfg may name the interpreter by another path (a link): give that path too.
    link = tools_env / "bin" / "python"
    named = link.readlink() if link.is_symlink() else program
    if named.is_absolute() and named != program:
        mounts += [*parents(str(named)), "--symlink", str(program), str(named)]
    for folder in _package_folders(prefix):
        mounts += ["--tmpfs", str(folder)]
    return mounts


def _package_folders(prefix: Path) -> list[Path]:
    """Every folder below `prefix` where third-party packages of some Python may lie."""
    found = [
        path
        for lib in ("lib", "lib64", "local/lib")
        for kind in ("site-packages", "dist-packages")
        for path in sorted((prefix / lib).glob(f"python3*/{kind}"))
    ]
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def interpreter() -> str:
    """The real interpreter behind a virtual environment: the one that sandboxes get."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
