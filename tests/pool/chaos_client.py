"""One client process of the chaos test: attempts with commands and an evaluation, a verdict file for each.

It uses the real provider and writes down, for every try, which commands were acknowledged and what the counter file in
the container says. It may be killed at any time; started again, it takes up the attempts that have no verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from swe_rl.cluster.processes import die_with_parent
from swe_rl.config.grading import GradingSettings
from swe_rl.deadline import Deadline
from swe_rl.errors import InfraError
from swe_rl.grading.grader import grade_patch
from swe_rl.sandbox.pool import PoolProvider
from swe_rl.sandbox.pool_sandbox import PoolSandbox
from swe_rl.types import Task

STEPS = 3
MAX_TRIES = 5
ATTEMPT_SECONDS = 300.0  # bounds that only a starved machine comes near
COMMAND_SECONDS = 60.0
EFFECTS = "/tmp/effects"


class Client:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.out = Path(flags.out)
        self.hosts = flags.hosts.split(",")
        self.random = random.Random(f"{flags.seed}-{os.getpid()}")
        self.provider = PoolProvider(
            flags.pool, token=flags.token, run=flags.name, ttl=flags.ttl, heartbeat_interval=2.0
        )
        self.task = Task(**json.loads(Path(flags.task).read_text()))

    async def attempt(self, number: int, places: asyncio.Semaphore) -> None:
        async with places:
            if (self.out / "verdicts" / f"{number}.json").exists():
                return
            verdict, reasons = "infra_error", []
            for turn in range(MAX_TRIES):
                try:
                    verdict = await self.one_try(number, f"{os.getpid()}.{turn}")
                    break
                except InfraError as error:
                    reasons.append(f"{type(error).__name__}: {error}"[:300])
            self.write("verdicts", str(number), {"verdict": verdict, "reasons": reasons})

    async def one_try(self, number: int, turn: str) -> str:
        deadline = Deadline(ATTEMPT_SECONDS)
        box = await self.provider.open(self.task, deadline=deadline, purpose="agent")
        acknowledged: list[str] = []
        try:
            for step in range(STEPS):
                mark = f"a{number}.t{turn}.s{step}"
                pause = self.random.uniform(0.0, 0.6)
                done = await box.exec(f"echo {mark} >> {EFFECTS}; sleep {pause:.2f}", timeout=COMMAND_SECONDS)
                assert done.returncode == 0, done
                acknowledged.append(mark)
            await box.exec("sed -i s/broken/fixed/ state.txt", timeout=COMMAND_SECONDS)
            patch = (await box.exec("git diff", timeout=COMMAND_SECONDS)).output.encode()
            seen: list[str] | None = (await box.exec(f"cat {EFFECTS}", timeout=COMMAND_SECONDS)).output.split()
        except InfraError:
            seen = await asyncio.to_thread(self.look_from_outside, box)
            raise
        finally:
            self.write(
                "tries", f"{number}.{turn}", {"acknowledged": acknowledged, "seen": seen if "seen" in vars() else None}
            )
            await box.close()
        self.judge(number, turn, acknowledged, seen)
        graded = await grade_patch(self.task, patch, self.provider, GradingSettings(verdict_cache=False), deadline)
        if graded.verdict.value != "resolved":  # kept for whoever must find out why
            facts = {"verdict": graded.verdict.value, "detail": graded.detail, "output": graded.output[-3000:]}
            self.write(
                "gradings", f"{number}.{turn}", {**facts, "returncode": graded.returncode, "patch": patch.decode()}
            )
        if not graded.verdict.counts:
            raise InfraError(f"grading: {graded.detail}")
        return graded.verdict.value

    def judge(self, number: int, turn: str, acknowledged: list[str], seen: list[str] | None) -> None:
        """Each acknowledged command ran exactly once, each other at most once."""
        if seen is None:
            return
        counts = Counter(seen)
        if any(count > 1 for count in counts.values()) or any(mark not in counts for mark in acknowledged):
            self.write("violations", f"{number}.{turn}", {"acknowledged": acknowledged, "seen": seen})

    def look_from_outside(self, box: PoolSandbox) -> list[str] | None:
        """The counter file by the engine itself, without any server; None where the container has gone."""
        for host in self.hosts:
            docker = ["docker", "-H", host]
            label = f"label=swe-rl.lease={box.lease_id}"
            found = subprocess.run(
                [*docker, "ps", "-aq", "--filter", label], capture_output=True, text=True, timeout=60
            )
            if found.stdout.strip():
                copy = [*docker, "cp", f"{found.stdout.split()[0]}:{EFFECTS}", "-"]
                tar = subprocess.run(copy, capture_output=True, timeout=60)
                read = subprocess.run(["tar", "-xO"], input=tar.stdout, capture_output=True, timeout=60)
                return read.stdout.decode().split() if tar.returncode == 0 else None
        return None

    def write(self, kind: str, name: str, value: dict) -> None:
        """Create a file that must not exist yet: a second verdict for an attempt is itself a violation."""
        temporary = self.out / f".{kind}.{name}.{os.getpid()}"
        temporary.write_text(json.dumps(value))
        try:
            os.link(temporary, self.out / kind / f"{name}.json")
        except FileExistsError:
            (self.out / "violations" / f"double.{kind}.{name}.json").write_text(json.dumps(value))
        temporary.unlink()


async def run(flags: argparse.Namespace) -> None:
    client = Client(flags)
    places = asyncio.Semaphore(flags.concurrent)
    try:
        await asyncio.gather(*(client.attempt(number, places) for number in range(flags.first, flags.last)))
    finally:
        await client.provider.aclose()


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL)
    parser = argparse.ArgumentParser()
    for name in ("pool", "token", "out", "hosts", "name", "task"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("first", 0), ("last", 0), ("concurrent", 4), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ttl", type=float, default=15.0)
    asyncio.run(run(parser.parse_args()))
    sys.exit(0)
