"""Commands through pool and exec server against the docker CLI and a server that calls it, in one run on one engine.

    python bench/sandbox.py [--json PATH] [--seconds 5]        needs root (it starts a private Docker Engine)

Goals: a no-op command 8 times faster than `docker exec`; 10 times the commands per second of a thread-per-request
server with 32 clients; create and start at most 15% above the bare engine; 1,000 idle leases in 150 MB and 5% of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from json_file import json_file  # noqa: E402

from swe_rl.deadline import Deadline  # noqa: E402
from swe_rl.sandbox.container.engine import Engine  # noqa: E402
from swe_rl.sandbox.container.limits import Limits, host_config  # noqa: E402
from swe_rl.sandbox.pool import PoolProvider  # noqa: E402
from swe_rl.sandbox.pool_process import PoolProcess  # noqa: E402
from swe_rl.sandbox.pool_sandbox import PoolSandbox  # noqa: E402
from swe_rl.types import Task  # noqa: E402
from tests.docker_engine import TEST_IMAGE, running_engine  # noqa: E402
from tests.pool.fake_node import FakeNode  # noqa: E402
from tests.pool.plane import exec_server, pool_server  # noqa: E402

CLIENTS = (1, 8, 32)
TASK = Task(instance_id="bench", problem_statement="", image=TEST_IMAGE, workdir="/")
SMALL = Limits(memory_mb=128, cpus=1.0, pids=64)
TOKEN = "bench-token-not-a-secret"
IDLE_LEASES = 1000


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


async def rate(calls: list[Callable[[], Awaitable[object]]], seconds: float) -> tuple[float, int]:
    """(commands per second, commands) of so many clients, each asking again as soon as it is answered."""
    ends = time.perf_counter() + seconds
    done = 0

    async def client(call: Callable[[], Awaitable[object]]) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await call()
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(client(call) for call in calls))
    return done / (time.perf_counter() - started), done


def cpu_seconds(engine: str) -> float:
    """Processor time so far of everything that takes part: this process, servers, engine, containers, ended ones included."""
    mine = psutil.Process()
    parts = {process.pid: process for process in [mine, *mine.children(recursive=True)]}
    for process in psutil.process_iter(["cmdline"]):
        if any(engine in word for word in process.info["cmdline"] or []):
            parts |= {one.pid: one for one in [process, *process.children(recursive=True)]}
    total = 0.0
    for process in parts.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


async def cli_exec(host: str, container: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "docker", "-H", host, "exec", container, "bash", "-c", "true", stdout=subprocess.DEVNULL
    )
    assert await process.wait() == 0


async def open_many(provider: PoolProvider, count: int) -> list[PoolSandbox]:
    """Sandboxes for the throughput measurements, four at a time."""
    places = asyncio.Semaphore(4)

    async def one() -> PoolSandbox:
        async with places:
            return await provider.open(TASK, deadline=Deadline(600), purpose="agent")

    return await asyncio.gather(*(one() for _ in range(count)))


async def bench_commands(host: str, pool: str, seconds: float) -> dict[str, dict[str, float]]:
    """By way: median no-op in ms, processor ms per command with 8 clients, commands per second by number of clients."""
    baseline = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "bench" / "cli_server.py")),
        env={**os.environ, "DOCKER_HOST": host},
        stdout=subprocess.PIPE,
    )
    assert baseline.stdout is not None
    url = f"http://127.0.0.1:{(await baseline.stdout.readline()).decode().strip()}/exec"
    ours = PoolProvider(pool, token=TOKEN)
    proxied = PoolProvider(pool, token=TOKEN, go_direct=False)
    results: dict[str, dict[str, float]] = {}
    root = str(Path(host.removeprefix("unix://")).parent)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            boxes = await open_many(ours, max(CLIENTS))
            far = await open_many(proxied, max(CLIENTS))
            ids = [f"swe-rl-{box.lease_id}" for box in boxes]  # the containers' names

            def server(container: str) -> Callable[[], Awaitable[object]]:
                async def call() -> None:
                    async with session.post(url, json={"container_id": container, "command": "true"}) as response:
                        assert (await response.json(content_type=None))["returncode"] == 0

                return call

            ways: dict[str, list[Callable[[], Awaitable[object]]]] = {
                "swe-rl": [lambda box=box: box.exec("true", timeout=30) for box in boxes],  # type: ignore[misc]
                "swe-rl, through the pool": [lambda box=box: box.exec("true", timeout=30) for box in far],  # type: ignore[misc]
                "docker exec (CLI)": [lambda one=one: cli_exec(host, one) for one in ids],  # type: ignore[misc]
                "thread per request + CLI": [server(one) for one in ids],
            }
            for name, calls in ways.items():
                for _ in range(5):
                    await calls[0]()
                times = [await timed(calls[0]) for _ in range(30)]
                results[name] = {"noop_ms": statistics.median(times) * 1000}
            for clients in CLIENTS:
                for name, calls in ways.items():
                    before = cpu_seconds(root)
                    results[name][str(clients)], done = await rate(calls[:clients], seconds)
                    if clients == 8:
                        results[name]["cpu_ms"] = 1000 * (cpu_seconds(root) - before) / done
    finally:
        await ours.aclose()
        await proxied.aclose()
        baseline.terminate()
        await baseline.wait()
    return results


async def bench_create(host: str, pool: str, rounds: int) -> dict[str, float]:
    """Median milliseconds of create + start: the bare engine's own calls, both servers, and how much more these took.

    They are taken in pairs in changing order, so that what else the machine does falls on both.
    """
    engine = Engine(host)
    provider = PoolProvider(pool, token=TOKEN)
    times: dict[str, list[float]] = {"bare engine": [], "through both servers": []}
    made: list[str] = []
    config = {
        "Image": TEST_IMAGE,
        "Cmd": ["sleep", "600"],
        "NetworkDisabled": True,
        "HostConfig": host_config(SMALL, disk_quota=False),
    }

    async def bare() -> None:
        made.append(await engine.create(dict(config), None))
        await engine.start(made[-1])

    async def ours() -> None:
        boxes.append(await provider.open(TASK, deadline=Deadline(120), purpose="agent"))

    boxes: list[PoolSandbox] = []
    try:
        for turn in range(rounds + 2):  # the first two warm up
            pair = [("bare engine", bare), ("through both servers", ours)]
            for name, call in pair if turn % 2 else reversed(pair):
                took = await timed(call)
                if turn >= 2:
                    times[name].append(took)
            await boxes.pop().close()
            await engine.remove(made.pop())
    finally:
        await provider.aclose()
        await engine.aclose()
    found = {name: statistics.median(taken) * 1000 for name, taken in times.items()}
    more = (ours - bare for bare, ours in zip(*times.values(), strict=True))
    return {**found, "more": statistics.median(more) * 1000}


async def bench_idle(seconds: float) -> dict[str, float]:
    """Memory (MB) and CPU (% of a core) of a pool server that holds idle leases with heartbeats."""
    node = await FakeNode(images=[TEST_IMAGE]).start()
    with tempfile.TemporaryDirectory() as folder:
        pool = PoolProcess(Path(folder), ["--nodes", node.url, "--capacity", str(IDLE_LEASES)], token=TOKEN)
        await pool.start()
        provider = PoolProvider(pool.url, token=TOKEN)
        try:
            opens = (provider.open(TASK, deadline=Deadline(3600), purpose="agent") for _ in range(IDLE_LEASES))
            await asyncio.gather(*opens)
            process = psutil.Process(pool.pid)
            await asyncio.sleep(3)
            before, started = process.cpu_times(), time.perf_counter()
            await asyncio.sleep(seconds)
            after, wall = process.cpu_times(), time.perf_counter() - started
            used = after.user + after.system - before.user - before.system
            return {"rss_mb": process.memory_info().rss / 1e6, "cpu_percent": 100 * used / wall}
        finally:
            await provider.aclose()
            await pool.stop()
            await node.stop()


async def run(host: str, seconds: float) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        # Limits small enough for 64 containers at once on a small machine; they do not change what a command costs.
        limits = ("--memory-mb", str(SMALL.memory_mb), "--cpus", str(SMALL.cpus), "--pids", str(SMALL.pids))
        server = exec_server(Path(folder) / "node", host, token=TOKEN, flags=limits)
        await server.start()
        pool = pool_server(
            Path(folder) / "pool", [server.url], token=TOKEN, flags=("--capacity", "80", "--close-at-exit")
        )
        try:
            await pool.start()
            create = await bench_create(host, pool.url, rounds=40)
            commands = await bench_commands(host, pool.url, seconds)
        finally:
            await pool.stop()
            await server.stop()
    return {"commands": commands, "create_ms": create, "idle": await bench_idle(15.0)}


def goals(found: dict) -> list[tuple[str, float, str, bool]]:
    """(what, measured, goal, met)."""
    commands, create, idle = found["commands"], found["create_ms"], found["idle"]
    faster = commands["docker exec (CLI)"]["noop_ms"] / commands["swe-rl"]["noop_ms"]
    more = commands["swe-rl"]["32"] / commands["thread per request + CLI"]["32"]
    above = 100 * create["more"] / create["bare engine"]
    return [
        ("no-op: times faster than docker exec", faster, ">= 8", faster >= 8),
        ("32 clients: times the commands/s of thread per request", more, ">= 10", more >= 10),
        ("create + start: % above the bare engine", above, "<= 15", above <= 15),
        (f"pool server, {IDLE_LEASES} idle leases: MB", idle["rss_mb"], "< 150", idle["rss_mb"] < 150),
        (f"pool server, {IDLE_LEASES} idle leases: % of a core", idle["cpu_percent"], "< 5", idle["cpu_percent"] < 5),
    ]


def show(found: dict) -> None:
    console = Console(width=max(130, Console().width))  # a log has no width; names on one line
    table = Table("way", "no-op ms (median)", "CPU ms per command", *(f"{count} clients: cmd/s" for count in CLIENTS))
    for name, row in found["commands"].items():
        rates = (f"{row[str(count)]:.0f}" for count in CLIENTS)
        table.add_row(name, f"{row['noop_ms']:.1f}", f"{row['cpu_ms']:.1f}", *rates)
    console.print(table)
    print(f"load average of the machine meanwhile: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    console.print("create + start, median ms:", {name: round(ms) for name, ms in found["create_ms"].items()})
    table = Table("goal", "measured", "wanted", "met")
    for what, measured, wanted, met in goals(found):
        table.add_row(what, f"{measured:.1f}", wanted, "yes" if met else "NO")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="PATH", type=json_file, help="write the figures there")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each throughput measurement [5]")
    flags = parser.parse_args()
    with running_engine("bench") as engine:
        found = asyncio.run(run(engine.host, flags.seconds))
    show(found)
    if flags.json:
        flags.json.write_text(json.dumps({**found, "goals": goals(found)}, indent=1))
    return 0 if all(met for *_, met in goals(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
