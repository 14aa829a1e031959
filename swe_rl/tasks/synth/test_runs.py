"""The client of `test_server.py`: real test runs of one repository, before and after a bug, in a fraction of a second each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import InfraError

SERVER = Path(__file__).with_name("test_server.py")


@dataclass(frozen=True)
class TestRun:
    """Status ("passed", "failed", "skipped") and seconds by node id; `failures`: (file, line) where a test broke;
    `calls`: (file, first line of the function) pairs that a test called, where tracing was asked for."""

    __test__ = False  # not a test class, whatever pytest makes of the name

    exit: int
    timed_out: bool
    tests: dict[str, str]
    seconds: dict[str, float]
    failures: dict[str, tuple[str, int]]
    calls: dict[str, list[tuple[str, int]]]

    def with_status(self, status: str) -> list[str]:
        return [name for name, got in self.tests.items() if got == status]


class TestServer:
    """One repository's test process; close it (or use `with`) to end it and what its tests left running."""

    __test__ = False

    def __init__(self, python: str, root: Path) -> None:
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(root), "LANG": "C.UTF-8", "TZ": "UTC"}
        env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [python, "-s", str(SERVER)],
            cwd=root,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, arguments: list[str], *, timeout: float, trace: bool = False) -> TestRun:
        """Run pytest with `arguments` in a fork. Raises InfraError if the server itself is gone."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"arguments": arguments, "timeout": timeout, "trace": trace}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise InfraError(f"the test process ended (exit code {self._process.poll()})")
        answer = json.loads(line)
        return TestRun(
            exit=answer["exit"],
            timed_out=answer["timed_out"],
            tests=answer["tests"],
            seconds=answer["seconds"],
            failures={name: (file, line) for name, (file, line) in answer["failures"].items()},
            calls={name: [(file, line) for file, line in calls] for name, calls in answer["calls"].items()},
        )

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()

    def __enter__(self) -> TestServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
