"""The pool server as a process: killed -9 it loses nothing, it ends with its parent, and it says what it cannot do."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from swe_rl.cli import main
from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxUnavailable
from swe_rl.sandbox.pool import PoolProvider
from swe_rl.sandbox.pool_process import PoolProcess
from swe_rl.types import Task
from tests.pool.conftest import until

TASK = Task(instance_id="t-1", problem_statement="", image="img")
TOKEN = "token-of-this-test"


@pytest.mark.slow
async def test_kill_9_at_any_time_loses_nothing(nodes, tmp_path: Path) -> None:
    node = await nodes()
    flags = ["--nodes", node.url, "--capacity", "40"]
    pool = PoolProcess(tmp_path, flags, token=TOKEN)
    await pool.start()
    port = int(pool.url.rpartition(":")[2])
    provider = PoolProvider(pool.url, token=TOKEN)
    rng = random.Random(5)

    async def work(number: int) -> None:
        sandbox = await provider.open(TASK, deadline=Deadline(60), purpose="agent")
        for step in range(3):
            assert (await sandbox.exec(f"{number}.{step}", timeout=20)).output == f"{number}.{step}"
        if number % 2:
            await sandbox.close()

    working = asyncio.gather(*(work(number) for number in range(30)))
    for _ in range(2):
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        os.killpg(pool.pid, signal.SIGKILL)
        await pool.stop()
        pool = PoolProcess(tmp_path, flags, token=TOKEN, port=port)
        await pool.start()
    await working
    assert sorted(node.runs) == sorted(f"{number}.{step}" for number in range(30) for step in range(3))
    await until(lambda: len(node.containers) == 15, within=60)  # what half-made allocations left behind is gone
    await provider.aclose()
    await until(lambda: node.containers == {}, within=30)
    await pool.stop()


@pytest.mark.slow
async def test_it_closes_its_leases_when_its_parent_is_killed(nodes, tmp_path: Path) -> None:
    node = await nodes()
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(tmp_path), node.url),
        stdout=subprocess.PIPE,
        env={**os.environ, "SWE_SERVER_TOKEN": TOKEN},
    )
    assert parent.stdout is not None
    url, pid = (await parent.stdout.readline()).decode().split()
    server = psutil.Process(int(pid))
    provider = PoolProvider(url, token=TOKEN)
    await provider.open(TASK, deadline=Deadline(20), purpose="agent")
    assert len(node.containers) == 1
    parent.kill()
    await parent.wait()
    await until(lambda: node.containers == {} and not server.is_running(), within=30)
    await provider.aclose()


PARENT = """
import asyncio, sys, time
from pathlib import Path
from swe_rl.sandbox.pool_process import PoolProcess
pool = PoolProcess(Path(sys.argv[1]), ["--nodes", sys.argv[2], "--close-at-exit"], token="token-of-this-test")
asyncio.run(pool.start())
print(pool.url, pool.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.slow
async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "pool.sqlite3").write_bytes(b"this is no book " * 100)
    with pytest.raises(SandboxUnavailable, match=r"pool\.sqlite3"):
        await PoolProcess(tmp_path, [], token=TOKEN).start()


def test_without_a_token_it_binds_to_loopback_only(monkeypatch, capsys) -> None:
    monkeypatch.delenv("SWE_SERVER_TOKEN", raising=False)
    assert main(["pool-server", "--host", "0.0.0.0"]) == 2
    assert "SWE_SERVER_TOKEN" in capsys.readouterr().err
    assert main(["pool-server", "--token-file", "/no/such/file"]) == 2
    assert main(["pool-server", "--capacity", "0"]) == 2


@pytest.mark.parametrize("server", ["pool-server", "exec-server"])
def test_a_port_that_is_taken_is_said(server: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    monkeypatch.delenv("SWE_EXEC_SERVER_URLS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main([server, "--port", port, "--database", str(tmp_path / "db")]) == 2
    said = capsys.readouterr().err
    assert f"--port {port}" in said and "address already in use" in said


@pytest.mark.parametrize(
    ("variable", "value"), [("SWE_MAX_CONTAINERS_PER_NODE", "many"), ("SWE_ENV_SERVER_PORT", "-1")]
)
def test_a_wrong_variable_is_named(variable: str, value: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["pool-server"]) == 2
    assert f"{variable}" in capsys.readouterr().err


def test_a_parent_that_ended_before_the_server_began_is_noticed(tmp_path: Path) -> None:
    """The pid in the flag is not that of the process it was started by: that one is gone, as it were."""
    command = [sys.executable, "-m", "swe_rl.sandbox.pool_server", "--nodes", "http://127.0.0.1:9", "--port", "0"]
    command += ["--database", str(tmp_path / "pool.sqlite3"), "--exit-with-parent", "1"]
    assert subprocess.run(command, timeout=60, check=False, stdin=subprocess.DEVNULL).returncode == 0
