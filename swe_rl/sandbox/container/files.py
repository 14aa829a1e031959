"""Files into and out of a container: small ones through its supervisor (milliseconds), large ones and tar streams
through the engine's archive API, which does not see tmpfs mounts (/dev/shm)."""

from __future__ import annotations

import io
import posixpath
import shlex
import tarfile
import time
from collections.abc import AsyncIterator

import aiohttp

from swe_rl.errors import UsageError
from swe_rl.sandbox.container.container import Container
from swe_rl.sandbox.container.engine import Engine
from swe_rl.sandbox.container.errors import ContainerGone, EngineRefused, FileMissing, FileTooLarge

SMALL = 16 * 1024 * 1024  # bytes that go through the supervisor's own tmpfs
SECONDS = 120.0
MAX_LINKS = 8
BLOCK = 512  # of a tar
MODE_FOLDER, MODE_LINK = 1 << 31, 1 << 27  # Go's os.FileMode, which engines tell


def clean_path(path: str) -> str:
    """An absolute path without `..` or NUL. Raises UsageError."""
    if not path.startswith("/") or "\0" in path:
        raise UsageError(f"path {path[:200]!r}: must be absolute")
    return posixpath.normpath(path)


async def write_file(engine: Engine, container: Container, path: str, data: bytes, mode: int) -> None:
    """Write one file; missing parents are made. Raises UsageError for a bad path, FileMissing where it cannot be written."""
    path = clean_path(path)
    if len(data) <= SMALL:
        quoted, folder = shlex.quote(path), shlex.quote(posixpath.dirname(path))
        script = f"mkdir -p -- {folder} && cat <&3 >{quoted} && chmod {mode:o} {quoted}; exit"
        done = await container.run(data, script.encode(), timeout=SECONDS, output_limit=1024)
        if done.returncode != 0:
            raise FileMissing(f"{path} cannot be written: {done.head.decode(errors='replace').strip()}")
        return
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(path.lstrip("/"))
        info.size, info.mode, info.mtime = len(data), mode, int(time.time())
        tar.addfile(info, io.BytesIO(data))
    await engine.put_archive(container.id, "/", buffer.getvalue())


async def read_file(engine: Engine, container: Container, path: str, max_bytes: int) -> bytes:
    """One regular file. Raises FileMissing, FileTooLarge, ContainerGone."""
    path = clean_path(path)
    if max_bytes > SMALL:
        return await _read_archive(engine, container.id, path, max_bytes)
    quoted = shlex.quote(path)
    script = f"[ -f {quoted} ] || exit 91; [ $(wc -c <{quoted}) -le {max_bytes} ] || exit 92; exec cat {quoted}"
    done = await container.run(b"", script.encode(), timeout=SECONDS, output_limit=max(max_bytes, 1024))
    if done.returncode == 91:
        raise FileMissing(f"{path} is not a file")
    if done.returncode == 92 or len(done.head) > max(max_bytes, 1024):
        raise FileTooLarge(f"{path} has more than {max_bytes} bytes")
    if done.returncode != 0:
        raise FileMissing(f"{path} cannot be read: {done.head[:300].decode(errors='replace').strip()}")
    return done.head


async def unpack(engine: Engine, container_id: str, folder: str, tar: bytes | AsyncIterator[bytes]) -> None:
    """Unpack a tar stream below `folder`, which is made where it is missing."""
    folder = clean_path(folder)
    if not await engine.exists(container_id, folder):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as made:
            info = tarfile.TarInfo(folder.lstrip("/"))
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
            made.addfile(info)
        await engine.put_archive(container_id, "/", buffer.getvalue())
    await engine.put_archive(container_id, folder, tar)


async def _read_archive(engine: Engine, container_id: str, path: str, max_bytes: int) -> bytes:
    """As `read_file`; links are followed inside the container."""
    for _ in range(MAX_LINKS):
        try:
            async with engine.get_archive(container_id, path) as (stat, stream):
                mode = int(stat["mode"])
                if mode & MODE_LINK:  # not by linkTarget: Podman gives every file one
                    path = posixpath.normpath(posixpath.join(posixpath.dirname(path), stat["linkTarget"]))
                    continue
                if mode & MODE_FOLDER:
                    raise FileMissing(f"{path} is a folder")
                if int(stat["size"]) > max_bytes:
                    raise FileTooLarge(f"{path} has {stat['size']} bytes; at most {max_bytes} were asked for")
                return _only_member(await _bounded(stream, max_bytes + 64 * BLOCK), path)
        except ContainerGone as error:
            if "no such container" in str(error).lower():
                raise
            raise FileMissing(f"{path}: no such file") from error
        except EngineRefused as error:
            raise FileMissing(f"{path}: {error}") from error
    raise FileMissing(f"{path}: too many symbolic links")


async def _bounded(stream: aiohttp.StreamReader, most: int) -> bytes:
    data = bytearray()
    while len(data) <= most and (chunk := await stream.readany()):
        data += chunk
    return bytes(data)


def _only_member(tar: bytes, path: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            if member.isreg() and (file := archive.extractfile(member)):
                return file.read()
    raise FileMissing(f"{path} is not a regular file")
