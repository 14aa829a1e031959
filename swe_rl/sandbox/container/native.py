"""Compiles supervisor.c on the node: the repository holds no binaries. Without a C compiler the script supervisor.sh serves."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from pathlib import Path

log = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("supervisor.c")
FLAGS = ("-std=gnu11", "-Os", "-static", "-s")  # static: it runs in images of any C library, or of none
COMPILERS = ("musl-gcc", "cc", "gcc", "clang")
COMPILE_SECONDS = 60.0


def build(folder: Path | None = None) -> str:
    """Path of the compiled supervisor in `folder` (the user's cache), made where it is not there yet; "" where it cannot be."""
    folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swe-rl"
    source = SOURCE.read_bytes()
    digest = hashlib.sha256(b"\0".join([source, " ".join(FLAGS).encode(), platform.machine().encode()])).hexdigest()[
        :16
    ]
    target = folder.absolute() / f"supervisor-{digest}"
    if target.exists():
        return str(target)
    failure = "no C compiler"
    for compiler in filter(None, map(shutil.which, COMPILERS)):
        made = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            command = [compiler, *FLAGS, "-o", str(made), str(SOURCE)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
            subprocess.run([str(made)], check=False, timeout=10)  # whether it can be run here
            made.chmod(0o755)
            made.replace(target)
            return str(target)
        except (subprocess.SubprocessError, OSError) as error:
            failure = f"{compiler}: {getattr(error, 'stderr', '') or error}"
        finally:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
    log.warning("the supervisor script serves, at twice the processor time a command: %s", failure.strip()[-500:])
    return ""
