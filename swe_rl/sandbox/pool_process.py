"""A pool server as a child of this process: started on a free port, ended by pid, gone when its parent is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from swe_rl.errors import SandboxUnavailable
from swe_rl.sandbox.owned_folder import process_record

START_SECONDS = 60.0
STOP_SECONDS = 30.0  # it closes its leases meanwhile


class PoolProcess:
    """`start()` returns when it answers; `stop()` when it and its containers are gone. The log is in `folder`."""

    def __init__(self, folder: Path, flags: list[str], *, token: str, port: int = 0) -> None:
        self.token = token
        self.url = ""
        self._folder, self._flags, self._port = folder, flags, port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Raises SandboxUnavailable with the end of its log where it does not come up."""
        port_file = self._folder / "port"
        command = [sys.executable, "-m", "swe_rl.sandbox.pool_server", "--host", "127.0.0.1"]
        command += ["--exit-with-parent", str(os.getpid())]
        command += ["--port", str(self._port), "--port-file", str(port_file)]
        command += ["--database", str(self._folder / "pool.sqlite3"), *self._flags]
        process = self._process = self._launch(command)
        (self._folder / "child.json").write_text(json.dumps(process_record(process.pid)))
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends and process.poll() is None:
            if port_file.exists():
                self.url = f"http://127.0.0.1:{port_file.read_text().strip()}"
                if await self._healthy():
                    return
            await asyncio.sleep(0.05)
        await self.stop()
        said = (self._folder / "pool.log").read_text(errors="replace").strip()[-1500:]
        raise SandboxUnavailable(f"the pool server did not start: {said or 'it said nothing'}")

    def _launch(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / "pool.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SWE_SERVER_TOKEN": self.token},
                start_new_session=True,  # a Ctrl-C reaches the run, which then ends this in order
            )

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL for its process group after a bound. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, STOP_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.to_thread(process.wait, 5)

    async def _healthy(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.url}/healthz", timeout=aiohttp.ClientTimeout(total=2)) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False
