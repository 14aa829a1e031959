"""Exec servers and a pool server as processes that can be killed -9 and started again on the same port and files."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp

START_SECONDS = 90.0


class ServerProcess:
    """One server; `flags` are those of its first start, later ones keep its port."""

    def __init__(self, module: str, folder: Path, flags: list[str], *, token: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = 0
        self.starts = 0
        self._module, self._flags, self._token = module, flags, token
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        self._process = self._launch(port_file)
        self.starts += 1
        for _ in range(int(START_SECONDS / 0.1)):
            if port_file.exists() and await self._healthy(port_file):
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            await asyncio.sleep(0.1)
        raise AssertionError(f"{self._module} did not start")

    def kill(self) -> None:
        """-9, without a chance to tidy up."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=10)

    async def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                await asyncio.to_thread(self._process.wait, 40)
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def _launch(self, port_file: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", self._module, "--host", "127.0.0.1"]
        command += ["--exit-with-parent", str(os.getpid())]
        command += ["--port", str(self.port), "--port-file", str(port_file), *self._flags]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SWE_SERVER_TOKEN": self._token},
                start_new_session=True,
            )

    async def _healthy(self, port_file: Path) -> bool:
        self.port = int(port_file.read_text())
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/healthz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


def exec_server(folder: Path, docker_host: str, *, token: str, flags: tuple[str, ...] = ()) -> ServerProcess:
    own = ["--docker-host", docker_host, "--database", str(folder / "exec.sqlite3")]
    return ServerProcess("swe_rl.sandbox.exec_server", folder, [*own, *flags], token=token)


def pool_server(folder: Path, nodes: list[str], *, token: str, flags: tuple[str, ...] = ()) -> ServerProcess:
    own = ["--nodes", ",".join(nodes), "--database", str(folder / "pool.sqlite3")]
    return ServerProcess("swe_rl.sandbox.pool_server", folder, [*own, *flags], token=token)
