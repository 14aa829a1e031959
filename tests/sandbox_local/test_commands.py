"""Whatever a command does, the call returns in its time, its processes are gone and its output is bounded (design rule 5)."""

from __future__ import annotations

import asyncio
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError, SandboxUnavailable
from swe_rl.sandbox.bubblewrap import why_unusable
from swe_rl.sandbox.provider import open_provider
from swe_rl.types import Task
from tests.grading.lab import build_lab
from tests.rollout.waiting import boxes, until


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    return build_lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(params=["bubblewrap", "process"])
async def provider(request, tmp_path):
    if request.param == "bubblewrap" and (reason := why_unusable()):
        pytest.skip(reason)
    opened = await open_provider(Config(sandbox=request.param, sandbox_root=str(tmp_path / "root")))
    yield opened
    await opened.aclose()
    assert list((tmp_path / "root" / "boxes").iterdir()) == []


@pytest.fixture
async def sandbox(provider, lab):
    return await provider.open(lab.task, deadline=Deadline(60), purpose="agent")


def marked(word: str) -> list[int]:
    """Processes of the whole machine whose command line holds the word."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(word in part for part in process.info["cmdline"] or []) and process.pid != os.getpid():
            found.append(process.pid)
    return found


async def begun(word: str) -> None:
    for _ in range(1500):
        if marked(word):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the command did not begin")


async def test_answers(sandbox):
    result = await sandbox.exec("pwd; echo out; echo err >&2; exit 7", timeout=20)
    assert (result.returncode, result.output) == (7, f"{sandbox.workdir}\nout\nerr\n")
    assert not result.timed_out and not result.truncated
    assert (await sandbox.exec("echo $PWD $X", timeout=20, cwd="pkg", env={"X": "y"})).output.endswith("/pkg y\n")
    assert (await sandbox.exec("kill -9 $$", timeout=20)).returncode == 137
    assert (await sandbox.exec("nosuch", timeout=20)).output == "bash: line 1: nosuch: command not found\n"
    assert (await sandbox.exec("git log --oneline | wc -l; git status --short", timeout=20)).output == "1\n"


async def test_state_lives_on_between_commands(sandbox):
    await sandbox.exec("echo kept > a.txt; echo kept > $TMPDIR/b.txt", timeout=20)
    assert (await sandbox.exec("cat a.txt $TMPDIR/b.txt", timeout=20)).output == "kept\nkept\n"


@pytest.mark.parametrize("command", ["cat", "read x; echo got:$x", "python3 -c 'input()'"])
async def test_standard_input_is_at_its_end(sandbox, command):
    assert not (await sandbox.exec(command, timeout=30)).timed_out


async def test_the_deadline_ends_everything(sandbox):
    word = f"31.{os.getpid()}"
    command = f"setsid sleep {word} & (setsid setsid sleep {word} &); trap '' TERM INT HUP; sleep {word}"
    result = await sandbox.exec(command, timeout=1)
    assert (result.returncode, result.timed_out) == (124, True)
    assert marked(word) == []


async def test_background_children_do_not_hold_the_answer(sandbox):
    word = f"32.{os.getpid()}"
    result = await sandbox.exec(f"sleep {word} & setsid sleep {word} & echo started", timeout=30)
    assert (result.returncode, result.output, result.timed_out) == (0, "started\n", False)
    assert marked(word) == []


async def test_endless_output_is_bounded(sandbox):
    before = psutil.Process().memory_info().rss
    result = await sandbox.exec("echo first; yes", timeout=2, output_limit=10_000)
    assert result.timed_out and result.truncated
    assert len(result.output) < 11_000 and result.output.startswith("first\n")
    assert "bytes of output left out" in result.output
    assert psutil.Process().memory_info().rss - before < 64 << 20


async def test_output_that_is_no_text(sandbox):
    assert (await sandbox.exec(r"printf 'a\xff\xfeb\0c'", timeout=20)).output == "a\ufffd\ufffdb\0c"
    assert (await sandbox.exec("exec >/dev/null 2>&1; echo lost", timeout=20)).output == ""


async def test_a_command_of_two_megabytes(sandbox):
    body = ("x" * 79 + "\n") * 26_000
    result = await sandbox.exec(f"cat > big.txt <<'EOF'\n{body}EOF\nwc -c < big.txt", timeout=60)
    assert result.output.strip() == str(len(body))


@pytest.mark.parametrize("timeout", [0, -1, -1e9])
async def test_a_timeout_that_is_no_time_ends_at_once(sandbox, timeout):
    assert (await sandbox.exec("sleep 100", timeout=timeout)).timed_out


async def test_files_in_and_out(sandbox):
    data = bytes(range(256)) * 4000
    await sandbox.upload("new/dir/-odd name.bin", data, mode=0o755)
    assert await sandbox.download("new/dir/-odd name.bin", max_bytes=len(data)) == data
    assert (await sandbox.exec("stat -c %a new/dir/*", timeout=20)).output == "755\n"
    with pytest.raises(SandboxError, match="larger than"):
        await sandbox.download("new/dir/-odd name.bin", max_bytes=len(data) - 1)
    for path in ("absent", "new/dir"):
        with pytest.raises(SandboxError, match="no such file"):
            await sandbox.download(path, max_bytes=10)


async def test_close_ends_a_running_command_and_removes_the_copy(sandbox):
    word = f"33.{os.getpid()}"
    running = asyncio.ensure_future(sandbox.exec(f"mkdir -p d/e; chmod 000 d; setsid sleep {word}", timeout=100))
    await begun(word)
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await running
    assert marked(word) == []
    assert not sandbox.box.path.exists()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec("true", timeout=1)


async def test_cancelling_the_caller_ends_the_command(sandbox):
    word = f"34.{os.getpid()}"
    running = asyncio.ensure_future(sandbox.exec(f"sleep {word}; true", timeout=100))
    await begun(word)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert marked(word) == []
    assert (await sandbox.exec("echo alive", timeout=20)).output == "alive\n"


async def test_an_opening_cancelled_in_whatever_moment_leaves_nothing(provider, lab, tmp_path):
    """Also in the moment in which the copy is ready: a caller that was cancelled is told so, and nothing is left."""
    await (await provider.open(lab.task, deadline=Deadline(60), purpose="agent")).close()  # its history is known now
    for attempt in range(40):
        opening = asyncio.ensure_future(provider.open(lab.task, deadline=Deadline(60), purpose="agent"))
        await asyncio.sleep(0.001 * attempt)
        if opening.cancel():
            with pytest.raises(asyncio.CancelledError):
                await opening
        else:
            await opening.result().close()
        await until(lambda: not boxes(tmp_path / "root"))  # a copy that was being made goes as soon as it is there


async def test_closing_goes_on_where_its_caller_is_cancelled(sandbox):
    closing = asyncio.ensure_future(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await sandbox.close()
    assert not sandbox.box.path.exists()


async def test_nothing_of_the_hosts_environment_is_seen(sandbox, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    assert "secret" not in (await sandbox.exec("env; cat /proc/self/environ", timeout=20)).output


async def test_what_cannot_be_opened_says_why(provider, lab, tmp_path):
    with pytest.raises(SandboxUnavailable, match="brings no archive"):
        await provider.open(Task("a", "b"), deadline=Deadline(10), purpose="agent")
    with pytest.raises(SandboxError, match="is not a file"):
        await provider.open(replace(lab.task, archive="/nowhere.tar"), deadline=Deadline(10), purpose="agent")
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"not a tar" * 1000)
    with pytest.raises(SandboxError, match="cannot be unpacked"):
        await provider.open(replace(lab.task, archive=str(broken)), deadline=Deadline(10), purpose="agent")
    with tarfile.open(tmp_path / "bare.tar", "w") as tar:
        tar.add(Path(__file__), arcname="file.py")
    with pytest.raises(SandboxError, match="no git repository"):
        await provider.open(
            replace(lab.task, archive=str(tmp_path / "bare.tar")), deadline=Deadline(10), purpose="agent"
        )
