"""Runs a task's tests and reports them to the grader, from inside the sandbox, with the code under test in the same process.

A script of its own for the sandbox's Python (standard library and pytest only). The parent process never loads the code under
test: it keeps the report key, which the child never had, counts what the child tells it through a pipe, adds the child's real
exit code, and writes the report only after the child's process group is gone. The child runs pytest with `pytest_witness`.

usage: python -I pytest_runner.py CONFIG   (JSON, see `evaluate_pytest.py`; CONFIG's folder is removed before any test runs)
"""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123 -- pathlib would add to the start of every grading
from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import zlib
from typing import Any, NoReturn

PR_SET_DUMPABLE = 4
MAX_EVENT_BYTES = 64 << 20
FINISH_GRACE = 5.0  # seconds the child may take to exit after its last event


def main() -> int:
    go_read, go_write = os.pipe()
    event_read, event_write = os.pipe()
    folder = os.path.dirname(os.path.abspath(sys.argv[1]))
    with open(os.path.join(folder, "pytest_witness.py")) as source:
        witness = source.read()
    child = os.fork()
    if child == 0:
        os.close(go_write)
        os.close(event_read)
        run_child(go_read, event_write, witness)
    os.close(go_read)
    os.close(event_write)
    # From here on the child cannot look into this process's memory or descriptors (same uid, not dumpable).
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    with open(sys.argv[1]) as file:
        config = json.load(file)
    key = config.pop("key")
    shutil.rmtree(folder, ignore_errors=True)
    with os.fdopen(go_write, "w") as go:
        json.dump(config, go)
    report = watch(event_read, child)
    packed = base64.b64encode(zlib.compress(json.dumps(report).encode("ascii", "backslashreplace"))).decode("ascii")
    sys.stdout.write("\n" + key + " " + packed + "\n")
    sys.stdout.flush()
    return 0 if report["exit"] == 0 else 1


def watch(events: int, child: int) -> dict[str, Any]:
    """Collect the child's events until it ends; what its orphans write later is not read."""
    # A pidfd-free way to learn of the child's end while reading: SIGCHLD writes to a wake-up pipe.
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(events, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    data, status = bytearray(), None
    while status is None:
        pid, code = os.waitpid(child, os.WNOHANG)
        if pid:
            status = code
        else:
            ready, _, _ = select.select([events, wake_read], [], [], 1.0)
            if wake_read in ready:
                os.read(wake_read, 4096)
            if events in ready and not take(events, data):
                select.select([wake_read], [], [], FINISH_GRACE)  # the pipe is closed: only the end is still to come
    take(events, data)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    lines = bytes(data).split(b"\n")
    parsed, broken = [], 0
    for line in lines[:-1]:
        try:
            parsed.append(json.loads(line))
        except ValueError:
            broken += 1
    return {"exit": exit_code, "events": parsed, "broken": broken + bool(lines[-1])}


def take(fd: int, data: bytearray) -> bool:
    """Read what is there; False at the end of the pipe."""
    while True:
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        if len(data) < MAX_EVENT_BYTES:
            data += chunk


def run_child(go: int, events: int, witness: str) -> NoReturn:
    os.setsid()
    with os.fdopen(go) as file:
        config = json.load(file)
    if not config:
        os._exit(125)
    del sys.argv[1:]
    try:
        import pytest

        # Everything of the harness is imported before the repository is on the path: no file there can take its place.
        namespace: dict[str, Any] = {"__name__": "pytest_witness"}
        exec(compile(witness, "pytest_witness.py", "exec"), namespace)
        plugin = namespace["Witness"](events, config)
        for name, value in config["env"].items():
            os.environ[name] = value
        sys.path[:0] = config["python_path"]
        code = pytest.main(config["arguments"], plugins=[plugin])
        plugin.ended(int(code))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(125)
    os._exit(int(code))


if __name__ == "__main__":
    sys.exit(main())
