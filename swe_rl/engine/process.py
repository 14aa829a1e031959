"""One engine as a child process: its own session, a log file, a bounded start, and an end that leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from swe_rl.deadline import Deadline
from swe_rl.errors import EngineError

LOG_TAIL_BYTES = 4000


class EngineProcess:
    """Start it, `wait_healthy()`, use `url`, `stop()`.

    The child leads its own process group and holds the read end of a pipe as stdin: when this process dies, however it
    dies, the pipe closes and the engine ends. url: where it will listen; empty = it prints `{"url": ...}` as its first
    line of stdout once it listens.
    """

    def __init__(self, command: list[str], *, log_path: Path, env: dict[str, str] | None = None, url: str = "") -> None:
        self.command = command
        self.log_path = Path(log_path)
        self.env = {**os.environ, **(env or {})}
        self.url = url
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id and process group id."""
        return self._running().pid

    def start(self) -> None:
        """Spawn the child. Raises EngineError where its program cannot be run."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log_file:
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=log_file if self.url else subprocess.PIPE,
                    stderr=log_file,
                    env=self.env,
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(f"engine cannot be started: {self.command[0]}: {error.strerror}") from error

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_healthy(self, timeout: float) -> str:
        """Wait until `/health` answers and return the URL.

        Raises EngineError with the end of the log where the engine exits or is not healthy after `timeout` seconds; it is
        stopped then.
        """
        limit = Deadline(timeout)
        try:
            while not limit.expired():
                if not self.alive():
                    raise EngineError(f"engine exited with code {self._running().returncode}:\n{self.log_tail()}")
                if (self.url or self._announced(limit.bound(0.5))) and _answers(f"{self.url}/health"):
                    return self.url
                time.sleep(limit.bound(0.2))
            raise EngineError(f"engine not healthy after {timeout:.0f} s:\n{self.log_tail()}")
        except BaseException:
            self.stop()
            raise

    def _announced(self, timeout: float) -> bool:
        """Read the line with the URL if it has come."""
        stdout = self._running().stdout
        assert stdout is not None, "without a URL, stdout is a pipe"
        if select.select([stdout], [], [], timeout)[0]:
            line = stdout.readline()
            if line:
                self.url = str(json.loads(line)["url"])
        return bool(self.url)

    def log_tail(self) -> str:
        """The end of the log, at most 4,000 bytes: what to print when a start failed."""
        try:
            with self.log_path.open("rb") as log_file:
                log_file.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
                text = log_file.read().decode("utf-8", "replace")
        except OSError as error:
            return f"(no log: {error})"
        return f"{text.strip()}\n(log: {self.log_path})"

    def stop(self, timeout: float = 15.0) -> None:
        """End the whole process group: SIGTERM, and SIGKILL for what is left after `timeout` seconds. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                _signal_group(process.pid, signal.SIGKILL)
                process.wait()
        _signal_group(process.pid, signal.SIGKILL)  # children that outlived their leader
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise EngineError("engine was not started")
        return self._process


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # the group is empty: nothing is left to end


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # engines are never behind a proxy
    try:
        with opener.open(url, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
