"""A command that is ended in the moment it begins: what its parent has made already does not stay behind."""

from __future__ import annotations

import subprocess
import sys

from swe_rl.sandbox.pid_namespace import end_namespace
from tests.processes import gone

# The parent of a namespace between making its first process and telling its pid.
PARENT = "import os, time\npid = os.fork()\nprint(pid, flush=True) if pid else None\ntime.sleep(300)"


async def test_a_child_that_nobody_was_told_of_ends_with_its_parent() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as parent:  # noqa: ASYNC220
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        await end_namespace(parent, None)
        assert parent.wait(30) == -9
        assert gone(child)
