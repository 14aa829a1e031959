"""A real exec server as a process of its own, for tests: started, killed and started again on the same port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.docker_engine import Engine

START_SECONDS = 60.0


class ExecServer:
    """Use `start` and `stop`. `post` returns (status, JSON)."""

    def __init__(self, engine: Engine, folder: Path, *flags: str, token: str = "") -> None:
        self.engine, self.folder, self.flags, self.token = engine, folder, flags, token
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "exec-server.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> ExecServer:
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "swe_rl.sandbox.exec_server", "--port", str(self.port)]
        command += ["--port-file", str(port_file), "--docker-host", self.engine.host, "--access-log"]
        command += [
            "--database",
            str(self.folder / "exec.sqlite3"),
            "--pids",
            "96",
            "--memory-mb",
            "256",
            "--cpus",
            "1",
        ]
        command += ["--exit-with-parent", str(os.getpid()), *self.flags]
        env = {**os.environ, "SWE_SERVER_TOKEN": self.token}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the exec server did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)
        self.port = int(port_file.read_text())
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(120)

    def stop_process(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill(signal.SIGTERM)

    def stop(self) -> None:
        """End the server, then every container that it left."""
        self.stop_process()
        if left := self.engine.docker("ps", "-aq", "--filter", "label=swe-rl.managed").split():
            self.engine.docker("rm", "-f", *left)

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(self.url + path, json=body) as answer,
        ):
            return answer.status, json.loads(await answer.read())

    async def ok(self, path: str, **body: Any) -> dict[str, Any]:
        status, answer = await self.post(path, **body)
        assert status == 200, answer
        return answer
