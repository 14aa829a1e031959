"""Kills servers, containers and clients with -9 and cuts connections at random (seeded) while clients work."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from swe_rl.types import Task
from tests.docker_engine import Engine
from tests.pool.cut_proxy import CutProxy
from tests.pool.plane import ServerProcess, exec_server, pool_server

TOKEN = "token-of-the-chaos"
LABEL = "label=swe-rl.pool"
TTL = 15.0


class Chaos:
    """The whole plane, its clients and the one who breaks them."""

    def __init__(self, folder: Path, engines: list[Engine], task: Task, *, seed: int) -> None:
        self.folder, self.engines, self.seed = folder, engines, seed
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()  # what was broken, how often
        self._task_file = folder / "task.json"
        self._task_file.write_text(json.dumps(vars(task)))
        self.out = folder / "out"
        for kind in ("verdicts", "tries", "violations", "gradings"):
            (self.out / kind).mkdir(parents=True)
        self.pace = 1.0
        self.nodes: list[ServerProcess] = []
        self.proxies: list[CutProxy] = []
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self._restarting: set[str] = set()

    async def start(self, capacity: int) -> None:
        """Nodes join under their proxies' addresses, so the pool's and the clients' connections can both be cut."""
        flags = ("--memory-mb", "256", "--pids", "64")
        for index, engine in enumerate(self.engines):
            node = exec_server(self.folder / f"node{index}", engine.host, token=TOKEN, flags=flags)
            await node.start()
            self.nodes.append(node)
            self.proxies.append(await CutProxy(node.port).start())
        pool_flags = ("--capacity", str(capacity), "--ttl", str(TTL))
        self.pool = pool_server(self.folder / "pool", [p.url for p in self.proxies], token=TOKEN, flags=pool_flags)
        started = time.monotonic()
        await self.pool.start()
        # On a machine where a server takes 10 s to start, breaking one every second would only test starting.
        self.pace = max(1.0, (time.monotonic() - started) / 2)
        self.proxies.append(await CutProxy(self.pool.port).start())

    async def work(self, numbers: range, clients: int, concurrent: int, calm: tuple[float, float]) -> None:
        """Clients make the attempts while things break every `calm` seconds; returns when all have a verdict.

        Raises what kept a broken server from coming back: without it no attempt would get anywhere.
        """
        share = -(-len(numbers) // clients)
        parts = {f"client{index}": numbers[index * share : (index + 1) * share] for index in range(clients)}
        watching = [
            asyncio.create_task(self._keep_running(name, part.start, part.stop, concurrent))
            for name, part in parts.items()
        ]
        breaking = asyncio.create_task(self._break(calm))
        working = asyncio.gather(*watching)
        try:
            await asyncio.wait([working, breaking], return_when=asyncio.FIRST_COMPLETED)
            if breaking.done():
                breaking.result()
            await working
        finally:
            breaking.cancel()
            working.cancel()
            await asyncio.gather(breaking, working, return_exceptions=True)
            for client in self._clients.values():
                if client.poll() is None:
                    client.kill()
            await asyncio.gather(*self._restarts)

    async def stop(self) -> None:
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await self.pool.stop()
        for proxy in self.proxies:
            await proxy.stop()
        for node in self.nodes:
            await node.stop()

    async def _keep_running(self, name: str, first: int, last: int, concurrent: int) -> None:
        """A killed client is started again until it has ended well."""
        while True:
            client = self._clients[name] = self._launch(name, first, last, concurrent)
            code = await asyncio.to_thread(client.wait)
            if code == 0:
                return
            assert code == -9, (self.folder / f"{name}.log").read_text()[-3000:]

    def _launch(self, name: str, first: int, last: int, concurrent: int) -> subprocess.Popen[bytes]:
        hosts = ",".join(engine.host for engine in self.engines)
        values = {"pool": self.proxies[-1].url, "token": TOKEN, "out": self.out, "hosts": hosts, "name": name}
        values |= {"task": self._task_file, "first": first, "last": last, "concurrent": concurrent}
        values |= {"seed": self.seed, "ttl": TTL}
        command = [sys.executable, "-m", "tests.pool.chaos_client"]
        command += [word for key, value in values.items() for word in (f"--{key}", str(value))]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ))

    async def _break(self, calm: tuple[float, float]) -> None:
        ways = {
            "exec server": self._kill_node,
            "pool server": self._kill_pool,
            "container": self._kill_container,
            "container removed": self._remove_container,
            "client": self._kill_client,
            "connections": self._cut,
        }
        while True:
            for way in self.random.sample(list(ways), len(ways)):  # each in turn, in a new order each time
                await asyncio.sleep(self.random.uniform(*calm) * self.pace)
                for task in [task for task in self._restarts if task.done()]:
                    task.result()
                    self._restarts.discard(task)
                if await ways[way]():
                    self.done[way] += 1

    async def _kill_node(self) -> bool:
        return self._kill_server(self.random.choice(self.nodes))

    async def _kill_pool(self) -> bool:
        return self._kill_server(self.pool)

    def _kill_server(self, server: ServerProcess) -> bool:
        name = str(server.folder)
        if name in self._restarting:
            return False
        server.kill()
        self._restarting.add(name)
        pause = self.random.uniform(0.1, 1.5)
        self._restarts.add(asyncio.create_task(self._restart(server, name, pause)))
        return True

    async def _restart(self, server: ServerProcess, name: str, pause: float) -> None:
        await asyncio.sleep(pause)
        await server.start()
        self._restarting.discard(name)

    async def _kill_container(self) -> bool:
        return await self._on_container("kill", "-s", "KILL")

    async def _remove_container(self) -> bool:
        return await self._on_container("rm", "-f")

    async def _on_container(self, *action: str) -> bool:
        engine = self.random.choice(self.engines)
        try:
            ids = (await asyncio.to_thread(engine.docker, "ps", "-q", "--filter", LABEL)).split()
            if ids:
                await asyncio.to_thread(engine.docker, *action, self.random.choice(ids))
            return bool(ids)
        except subprocess.CalledProcessError:  # it ended by itself meanwhile
            return False

    async def _kill_client(self) -> bool:
        alive = [client for client in self._clients.values() if client.poll() is None]
        if alive:
            self.random.choice(alive).kill()
        return bool(alive)

    async def _cut(self) -> bool:
        self.random.choice(self.proxies).cut()
        return True
