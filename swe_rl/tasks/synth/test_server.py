"""Runs tests of a repository again and again, fast: a process that has pytest loaded and forks for every request.

A script of its own (standard library and pytest), started by `test_runs.TestServer` with the sandbox's Python. Requests and
answers are JSON lines on stdin and stdout. With "trace", the answer also says which functions each test calls, so that
a mutant needs only the tests that reach it.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

# Python put this file's folder first: tests must not import the modules beside it (Python 3.10 has no flag -P for that).
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

import pytest  # noqa: E402


class Recorder:
    """pytest plugin: outcome, seconds, failing line and called functions of each test."""

    def __init__(self, root: str, trace: bool) -> None:
        self.root, self.trace = root, trace
        self.tests: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, list[Any]] = {}
        self.calls: dict[str, list[Any]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        called: set[tuple[str, int]] = set()
        started = time.process_time()

        def profile(frame: Any, event: str, argument: Any) -> None:
            if event == "call":
                called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        if self.trace:
            sys.setprofile(profile)
        yield
        sys.setprofile(None)
        self.seconds[item.nodeid] = time.process_time() - started  # of the CPU: a busy machine changes nothing
        if self.trace:
            prefix = self.root + "/"
            inside = sorted((f[len(prefix) :], line) for f, line in called if f.startswith(prefix))
            self.calls[item.nodeid] = inside

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        outcome = yield
        report = outcome.get_result()
        name = item.nodeid
        if report.when == "call" or report.outcome != "passed":
            worst = "failed" if "failed" in (self.tests.get(name), report.outcome) else report.outcome
            self.tests[name] = "skipped" if hasattr(report, "wasxfail") else worst
        if report.outcome == "failed" and name not in self.failures and call.excinfo is not None:
            test_file = str(item.path)
            entries = [e for e in call.excinfo.traceback if str(e.path) == test_file]
            if entries:
                self.failures[name] = [test_file[len(self.root) + 1 :], entries[-1].lineno + 1]


def run(request: dict[str, Any], answer_fd: int) -> None:
    import resource

    os.setsid()
    bound = int(request["timeout"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (bound, bound))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    root = Path.cwd()
    recorder = Recorder(str(root), request.get("trace", False))
    for path in (str(root), str(root / "src")):
        sys.path.insert(0, path)
    fixed = ["-p", "no:cacheprovider", "-p", "no:terminal", "-o", "addopts="]
    code = pytest.main([*fixed, *request["arguments"]], plugins=[recorder])
    answer = {"exit": int(code), **{k: getattr(recorder, k) for k in ("tests", "seconds", "failures", "calls")}}
    with os.fdopen(answer_fd, "w") as out:
        json.dump(answer, out)
    os._exit(0)


def serve(request: dict[str, Any]) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            run(request, write)
        finally:
            os._exit(3)
    os.close(write)
    end, data, timed_out = time.monotonic() + request["timeout"], b"", False
    while True:
        left = end - time.monotonic()
        ready = select.select([read], [], [], max(0.0, left))[0] if left > 0 else []
        if not ready:
            timed_out = True
            break
        chunk = os.read(read, 1 << 20)
        if not chunk:
            break
        data += chunk
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if timed_out or not data:
        return {"exit": -1, "timed_out": timed_out, "tests": {}, "seconds": {}, "failures": {}, "calls": {}}
    return {"timed_out": False, **json.loads(data)}


for line in sys.stdin:
    sys.stdout.write(json.dumps(serve(json.loads(line))) + "\n")
    sys.stdout.flush()
