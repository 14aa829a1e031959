"""Images that do not show the repository as an agent must find it: what is done in them before anybody works there.

SWE-smith's images hold the repository before its bug (one image serves all bugs of a repository): the row's patch is applied,
and the tests that show the bug are taken away from agents, as in the branches that SWE-smith keeps on its mirrors. R2E-Gym's
images hold the hidden tests beside the repository: they are taken away from agents.
Sources: SWE-smith's harness (`git checkout <instance_id>`, commits "Bug Patch" and "Remove F2P Tests"; `patch` makes the bug);
R2E-Gym's runtime (`run_tests.sh` and `r2e_tests` are moved out of the agent's sight).
"""

from __future__ import annotations

import functools
import re
import secrets
from pathlib import Path

from swe_rl.errors import SandboxError
from swe_rl.sandbox.protocol import Sandbox
from swe_rl.types import Task

SCRIPT = Path(__file__).with_name("starting_state.sh")
_TEST_FILE = re.compile(r"test_.*|.*_tests?\.\w+|tests?\.\w+")
LOOK_SECONDS = 20.0
BUG_PATCH = "bug_patch"  # Task.metadata: the patch that makes the bug


class StartingStateError(SandboxError):
    """The image does not fit its task: another sandbox would not help, the dataset's row is wrong."""


def needs_preparation(task: Task) -> bool:
    """Whether the task's image differs from what an agent must find."""
    return _kind(task) != ""


def _kind(task: Task) -> str:
    if task.metadata.get(BUG_PATCH):
        return "bug"
    return "r2e" if task.log_parser == "r2e" else ""


async def prepare(sandbox: Sandbox, task: Task, purpose: str, *, timeout: float) -> None:
    """Bring the repository in a fresh sandbox to the task's starting state; nothing where none is needed.

    purpose: "agent", or another that keeps the tests. Raises StartingStateError where the image does not fit the task,
    SandboxError where the sandbox does not answer.
    """
    kind = _kind(task)
    if not kind:
        return
    folder = f".git/swe-rl-{secrets.token_hex(8)}"
    bug = str(task.metadata.get(BUG_PATCH, ""))
    hidden = dict.fromkeys(
        test.split("::")[0] for test in task.fail_to_pass if "::" in test
    )  # doctests stay: source files
    files = {
        "bug.diff": (bug if bug.endswith("\n") else bug + "\n").encode("utf-8", "surrogateescape"),
        "hidden": b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in hidden if _is_test(name)),
    }
    for name, data in files.items():
        await upload_into_git(sandbox, f"{folder}/{name}", data)
    # An archive may be unpacked on the user's own machine: only what lies in the repository is touched there.
    alone = "" if task.archive else "1"
    command = f"KIND={kind} PURPOSE={re.sub('[^a-z]', '', purpose)} ALONE={alone} D={folder}\n{_script()}"
    result = await sandbox.exec(command, timeout=timeout)
    found = re.findall(r"^swe-rl-start (\w+) ?(.*)$", result.output, re.MULTILINE)
    if found and found[-1][0] == "failed":
        raise StartingStateError(f"{task.instance_id}: no starting state in this image: {found[-1][1]}")
    if result.timed_out or not found:
        reason = "timeout" if result.timed_out else result.output[-300:]
        raise SandboxError(f"{task.instance_id}: the starting state could not be made: {reason}")


async def upload_into_git(sandbox: Sandbox, path: str, data: bytes) -> None:
    """Upload a file below .git. Raises StartingStateError where that is no folder of the user's, else as `Sandbox.upload`."""
    try:
        await sandbox.upload(path, data)
    except SandboxError as error:
        looked = await sandbox.exec("[ -d .git ] && [ -w .git ]", timeout=LOOK_SECONDS)
        if looked.returncode == 1 and not looked.timed_out:
            raise StartingStateError(
                f"{sandbox.workdir}/.git is no folder that the image's user can write to"
            ) from error
        raise


def _is_test(path: str) -> bool:
    folders, _, name = path.rpartition("/")
    inside = not path.startswith("/") and ".." not in path.split("/")
    return inside and (
        bool(_TEST_FILE.fullmatch(name)) or not {"test", "tests", "testing"}.isdisjoint(folders.split("/"))
    )


@functools.cache
def _script() -> str:
    return SCRIPT.read_text()
