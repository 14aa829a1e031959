"""What a bubblewrap sandbox cannot reach, and what is left of a run that was killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import swe_rl
from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.errors import ConfigError, UsageError
from swe_rl.sandbox import bubblewrap as module
from swe_rl.sandbox.local_box import boxes_root, sweep
from swe_rl.sandbox.local_tools import ensure_tools_env
from swe_rl.sandbox.provider import open_provider
from tests.grading.lab import build_lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    return build_lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture
async def sandbox(tmp_path, lab):
    if reason := module.why_unusable():
        pytest.skip(reason)
    provider = await open_provider(Config(sandbox="bubblewrap", sandbox_root=str(tmp_path / "root")))
    yield await provider.open(lab.task, deadline=Deadline(60), purpose="agent")
    await provider.aclose()


async def test_neither_the_checkout_nor_other_packages_are_there(sandbox):
    checkout = Path(swe_rl.__file__).parents[1]
    look = f"""
    ls {checkout} {sys.prefix} {Path.home()}/.cache /var/tmp {sandbox.box.path} 2>&1 | grep -v 'No such file'
    python -c 'import importlib.metadata as m; print(sorted({{d.name.lower() for d in m.distributions()}}))'
    for name in unidiff numpy torch swe_rl pip yaml; do python -c "import $name" 2>/dev/null && echo "$name is there"; done
    /usr/bin/python3 -c 'import yaml' 2>/dev/null && echo "yaml is there"
    find / -xdev \\( -name site-packages -o -name dist-packages \\) 2>/dev/null | while read -r d; do ls "$d"; done | sort -u
    """
    lines = (await sandbox.exec(look, timeout=60)).output.splitlines()
    assert lines[0] == "['iniconfig', 'packaging', 'pluggy', 'pygments', 'pytest']"
    assert not [line for line in lines[1:] if "is there" in line]
    allowed = ("_pytest", "pytest", "py.py", "iniconfig", "packaging", "pluggy", "pygments", "__pycache__")
    assert [line for line in lines[1:] if not line.startswith(allowed)] == []


async def test_the_system_cannot_be_written_and_other_processes_not_seen(sandbox):
    write = "for f in /usr/x /etc/x /x /opt/x /opt/tools/x /root/x /proc/sys/kernel/hostname; do echo > $f && echo WROTE $f; done"
    assert "WROTE" not in (await sandbox.exec(write, timeout=20)).output
    assert int((await sandbox.exec("ls -d /proc/[0-9]* | wc -l", timeout=20)).output) < 8
    assert (await sandbox.exec("kill -9 -1; echo alive", timeout=20)).output.endswith("alive\n")
    assert (await sandbox.exec("kill -9 1 $PPID; echo alive", timeout=20)).output.endswith("alive\n")


async def test_there_is_no_network(sandbox):
    script = "import socket; socket.create_connection(('{}', {}), timeout=3)"
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for host in ("127.0.0.1", "1.1.1.1"):
        result = await sandbox.exec(f'python -c "{script.format(host, port)}"', timeout=20)
        assert result.returncode == 1 and "Error" in result.output
    server.close()


async def test_links_lead_nowhere_outside(sandbox):
    await sandbox.exec("ln -s /etc/shadow a; ln -s /proc/1/root/etc/shadow b; ln -s /etc out", timeout=20)
    for name in ("a", "b"):
        with pytest.raises(Exception, match="failed"):
            await sandbox.download(name, max_bytes=1 << 20)
    with pytest.raises(Exception, match="failed"):
        await sandbox.upload("out/swe-rl-test", b"x")
    assert not Path("/etc/swe-rl-test").exists()


@pytest.mark.slow
async def test_a_fork_bomb_is_bounded(sandbox):
    if os.getuid() != 0:
        pytest.skip("counts the user's other processes too")
    result = await sandbox.exec("for i in $(seq 400); do sleep 5 & done; echo done", timeout=20)
    assert "Resource temporarily unavailable" in result.output or result.timed_out


async def test_tests_run_with_the_sandbox_python(sandbox):
    assert (
        "1 passed" in (await sandbox.exec("python -m pytest tests/test_shout.py; pytest --version", timeout=60)).output
    )


KILLED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {checkout!r})
from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.sandbox.provider import open_provider
from swe_rl.types import Task

async def main():
    provider = await open_provider(Config(sandbox={kind!r}, sandbox_root={root!r}))
    sandbox = await provider.open(Task("t", "p", archive={archive!r}), deadline=Deadline(60), purpose="agent")
    await sandbox.exec("setsid sleep {word} & sleep {word}", timeout=600)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["bubblewrap", "process"])
async def test_a_killed_run_leaves_nothing(kind, tmp_path, lab):
    if kind == "bubblewrap" and (reason := module.why_unusable()):
        pytest.skip(reason)
    word = f"41.{os.getpid()}"
    checkout = str(Path(swe_rl.__file__).parents[1])
    text = KILLED.format(checkout=checkout, kind=kind, root=str(tmp_path / "root"), archive=lab.task.archive, word=word)
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stderr=subprocess.DEVNULL)

    def sleepers():
        return [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", word]]

    async def until(condition):
        for _ in range(1500):
            if condition():
                return True
            await asyncio.sleep(0.02)
        return False

    assert await until(lambda: len(sleepers()) == 2)
    run.send_signal(signal.SIGKILL)
    await run.wait()
    assert await until(lambda: not sleepers())
    root = boxes_root(str(tmp_path / "root"))
    assert len(list(root.iterdir())) >= 1
    assert sweep(root) >= 1
    assert list(root.iterdir()) == []


def test_living_owners_keep_their_boxes(tmp_path):
    root = boxes_root(str(tmp_path / "root"))
    mine, recycled = root / "1-a", root / "2-b"
    for box, started in ((mine, psutil.Process().create_time()), (recycled, 12345.0)):
        box.mkdir()
        (box / "owner.json").write_text(json.dumps({"pid": os.getpid(), "started": started}))
    assert sweep(root) == 1
    assert mine.exists() and not recycled.exists()


def test_a_root_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="another user"):
        boxes_root(str(tmp_path / "link"))


async def test_a_sandbox_that_cannot_be_used_says_why(monkeypatch):
    monkeypatch.setattr(module, "why_unusable", lambda: "bubblewrap is not installed (package bubblewrap)")
    with pytest.raises(ConfigError, match="sandbox=bubblewrap cannot be used here: bubblewrap is not installed"):
        await open_provider(Config(sandbox="bubblewrap"))


def test_the_tools_environment_is_made_once():
    first = ensure_tools_env()
    changed = (first / "swe-rl-tools.json").stat().st_mtime_ns
    assert ensure_tools_env() == first
    assert (first / "swe-rl-tools.json").stat().st_mtime_ns == changed
