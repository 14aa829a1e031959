"""Files into and out of a container: through its supervisor, as its user and wherever that user sees them, in pieces
where they are large. Tar streams go through the engine's archive API, which is root's and sees no memory file systems."""

from __future__ import annotations

import contextlib
import hashlib
import io
import posixpath
import shlex
import tarfile
import time
from collections.abc import AsyncIterator

from swe_rl.errors import SandboxError, UsageError
from swe_rl.sandbox.container.container import Container
from swe_rl.sandbox.container.engine import Engine
from swe_rl.sandbox.container.errors import DiskFull, FileMissing, FileTooLarge
from swe_rl.sandbox.container.limits import MIB, SUPERVISOR_FOLDER
from swe_rl.sandbox.container.supervisor import Outcome

PIECE = 16 * MIB  # bytes of one command; they go through the supervisor's own tmpfs
SECONDS = 120.0  # for one piece
FULL = ("No space left on device", "Disk quota exceeded")
# $p: the file, $f: its folder, $s: a file beside it, which takes its place at the end; $t: which of both is written.
_FIRST = """\
mkdir -p -- "$f" && {
  t=$s
  rm -f -- "$s"
  if [ -L "$p" ] || [ ! -w "$f" ] || { [ -e "$p" ] && { [ ! -f "$p" ] || [ ! -O "$p" ]; }; }; then t=$p; fi
  cat <&3 >"$t" && { [ "$t" = "$p" ] || echo side; }
}"""
_NEXT = '[ -e "$t" ] && cat <&3 >>"$t"'
_LAST = """ && chmod {mode:o} -- "$t" && {{
  [ "$t" = "$p" ] || {{ [ ! -d "$p" ] && mv -f -- "$t" "$p" 2> /dev/null; }} ||
    {{ cat -- "$t" >"$p" && chmod {mode:o} -- "$p" && rm -f -- "$t"; }}  # what is mounted there cannot be replaced
}}"""
_END = "; exit"
IN_MEMORY = ("/dev", "/proc", "/sys", SUPERVISOR_FOLDER)


def clean_path(path: str) -> str:
    """An absolute path without `..` or NUL. Raises UsageError."""
    if not path.startswith("/") or "\0" in path:
        raise UsageError(f"path {path[:200]!r}: must be absolute")
    return posixpath.normpath(path)


async def write_file(container: Container, path: str, data: bytes, mode: int) -> None:
    """Write one file; missing parents are made. No command sees a part of it, and where it fails the old one stays.

    A link, a device or a file of another user is written to as it is. Raises UsageError for a bad path, FileMissing where it
    cannot be written, DiskFull, and SandboxError where writing was ended.
    """
    path = clean_path(path)
    folder = posixpath.dirname(path)
    # A name that a second try meets again, where the first one's end was cut.
    name = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    side = posixpath.join(folder, f".swe-rl-{name}")
    words = f"export LC_ALL=C; p={shlex.quote(path)} f={shlex.quote(folder)} s={shlex.quote(side)}\n"
    starts = range(0, max(1, len(data)), PIECE)
    async with container.turn(SECONDS):
        try:
            for start in starts:
                script = words + (_NEXT if start else _FIRST) + (_LAST.format(mode=mode) if start == starts[-1] else "")
                piece = data[start : start + PIECE]
                done = await container.run_in_turn(
                    piece, f"{script}{_END}".encode(), timeout=SECONDS, output_limit=1024
                )
                if done.returncode != 0 or done.timed_out:
                    raise _unwritten(path, done)
                if not start:
                    words += f"t={shlex.quote(side if done.head.startswith(b'side') else path)}\n"
        except SandboxError:
            with contextlib.suppress(SandboxError):  # a script that was ended has not removed it
                remove = f"rm -f -- {shlex.quote(side)}; exit".encode()
                await container.run_in_turn(b"", remove, timeout=SECONDS, output_limit=1024)
            raise


def _unwritten(path: str, done: Outcome) -> SandboxError:
    said = done.head.decode(errors="replace").strip()
    if any(sign in said for sign in FULL):
        return DiskFull(f"{path} cannot be written: {said}")
    if done.timed_out or done.returncode > 128:
        return SandboxError(f"{path} could not be written: it was ended (exit code {done.returncode}): {said}")
    return FileMissing(f"{path} cannot be written: {said}")


async def read_file(container: Container, path: str, max_bytes: int) -> bytes:
    """One regular file. Raises FileMissing, FileTooLarge, ContainerGone."""
    path = clean_path(path)
    quoted, data = shlex.quote(path), bytearray()
    checks = f"[ -f {quoted} ] || exit 91; size=$(wc -c <{quoted}); [ $size -le {max_bytes} ] || exit 92; "
    first = f"[ $size -gt {PIECE} ] || exec cat {quoted}; "
    async with container.turn(SECONDS):
        while len(data) % PIECE == 0:
            piece = f"exec dd if={quoted} bs={MIB} skip={len(data) // MIB} count={PIECE // MIB} status=none"
            script = checks + ("" if data else first) + piece
            limit = max(min(max_bytes, PIECE), 1024)
            done = await container.run_in_turn(b"", script.encode(), timeout=SECONDS, output_limit=limit)
            if done.returncode == 91:
                raise FileMissing(f"{path} is not a file")
            if done.returncode not in (0, 92):
                raise FileMissing(f"{path} cannot be read: {done.head[:300].decode(errors='replace').strip()}")
            data += done.head[:PIECE]
            if done.returncode == 92 or len(data) > max_bytes:
                raise FileTooLarge(f"{path} has more than {max_bytes} bytes")
            if not done.head:
                break
    return bytes(data)


async def unpack(engine: Engine, container_id: str, folder: str, tar: bytes | AsyncIterator[bytes]) -> None:
    """Unpack a tar stream below `folder`, which is made where it is missing. Raises UsageError for one in memory."""
    folder = clean_path(folder)
    if folder.startswith(tuple(f"{mount}/" for mount in IN_MEMORY)) or folder in IN_MEMORY:
        raise UsageError(
            f"path {folder!r}: the engine unpacks archives on disk only; upload it as a file, and unpack that"
        )
    if not await engine.exists(container_id, folder):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as made:
            info = tarfile.TarInfo(folder.lstrip("/"))
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
            made.addfile(info)
        await engine.put_archive(container_id, "/", buffer.getvalue())
    await engine.put_archive(container_id, folder, tar)
