"""Everything is killed at random while attempts run. At the end: one verdict each, every command once, nothing left."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.docker_engine import Engine
from tests.pool.chaos import LABEL, TOKEN, Chaos
from tests.pool.conftest import until
from tests.pool.test_docker import repository

pytestmark = pytest.mark.docker


async def test_a_small_storm(engines: Callable[[int], list[Engine]], tmp_path: Path) -> None:
    await storm(engines(2), tmp_path, attempts=20, clients=2, concurrent=3, capacity=5, calm=(1.0, 3.0), seed=11)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_the_storm(engines: Callable[[int], list[Engine]], tmp_path: Path) -> None:
    broken = await storm(
        engines(3), tmp_path, attempts=200, clients=4, concurrent=4, capacity=6, calm=(0.5, 3.0), seed=12, each=3
    )
    assert least(broken) >= 3, broken


def least(broken: Counter[str]) -> int:
    """How often each way of breaking was tried at least."""
    return min(
        *(broken[way] for way in ("exec server", "pool server", "client", "connections")),
        broken["container"] + broken["container removed"],
    )


async def storm(
    engines: list[Engine], folder: Path, *, seed: int, attempts: int, capacity: int, each: int = 0, **work
) -> Counter[str]:
    """Run it and check what must hold at the end; returns what was broken, how often.

    each: work goes on, up to four times `attempts`, until this many of each have been broken: a fast machine is done early.
    """
    chaos = Chaos(folder, engines, repository(folder / "task"), seed=seed)
    await chaos.start(capacity)
    try:
        started = time.monotonic()
        total = attempts
        await chaos.work(range(total), **work)
        while least(chaos.done) < each and total < 4 * attempts:
            await chaos.work(range(total, total + attempts), **work)
            total += attempts
        print(f"{total} attempts in {time.monotonic() - started:.0f} s under {dict(chaos.done)}")
        check_attempts(chaos.out, total)
        await check_pool(chaos, capacity * len(engines))
    finally:
        await chaos.stop()
    for engine in engines:
        assert engine.docker("ps", "-aq", "--filter", LABEL) == ""
    await until(lambda: processes_of(folder) == [] and not any(map(shims_of, engines)), within=30)
    return chaos.done


def check_attempts(out: Path, attempts: int) -> None:
    """Exactly one verdict for each attempt, no command twice, none lost that was acknowledged."""
    violations = [path.read_text() for path in (out / "violations").iterdir()]
    assert violations == []
    verdicts = {int(path.stem): json.loads(path.read_text()) for path in (out / "verdicts").iterdir()}
    assert sorted(verdicts) == list(range(attempts))
    counts = Counter(one["verdict"] for one in verdicts.values())
    print(dict(counts), Counter(reason.split(":")[0] for one in verdicts.values() for reason in one["reasons"]))
    # The patch is right, so every other verdict about it would be wrong.
    wrong = [path.read_text() for path in (out / "gradings").iterdir() if '"infra_error"' not in path.read_text()]
    assert set(counts) <= {"resolved", "infra_error"}, wrong
    assert counts["resolved"] >= 0.8 * attempts, [one for one in verdicts.values() if one["verdict"] != "resolved"]
    tries = [json.loads(path.read_text()) for path in (out / "tries").iterdir()]
    looked = [one for one in tries if one["seen"] is not None]
    assert sum(len(one["acknowledged"]) for one in looked) >= 3 * counts["resolved"]


async def check_pool(chaos: Chaos, capacity: int) -> None:
    """No lease and no container is left, all capacity is back; leases of killed clients may still have to expire."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        ends = time.monotonic() + 120
        while True:
            async with session.get(f"{chaos.pool.url}/status") as response:
                status = await response.json()
            if status["leases"] == [] and status["free"] == capacity and status["waiting"] == {}:
                break
            assert time.monotonic() < ends, status
            await asyncio.sleep(0.5)
    for engine in chaos.engines:
        assert engine.docker("ps", "-aq", "--filter", LABEL) == ""


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder of this test."""
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


def shims_of(engine: Engine) -> list[str]:
    """The engine's processes that hold containers."""
    own = f"{engine.root}/exec"
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if "shim" in " ".join(process.info["cmdline"] or [])[:200] and own in " ".join(process.info["cmdline"])
    ]
