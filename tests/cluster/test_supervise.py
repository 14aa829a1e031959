"""A run's supervisor leaves no process behind, however the driver or the supervisor ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from swe_rl.cluster.processes import end_recorded_processes, record_processes
from tests.processes import alive, gone

# The driver starts a child in a session of its own (as Ray and engines do), says both pids, and waits.
DRIVER = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
from swe_rl.cluster.processes import die_with_parent
die_with_parent()
print(os.getpid(), child.pid, os.environ["SWE_RL_SUPERVISED"], flush=True)
{after}
"""
SUPERVISOR = """
import sys
from swe_rl.cluster import supervise
supervise.STOP_BOUND = float(sys.argv[2])
sys.exit(supervise.run_supervised([sys.executable, "-c", sys.argv[1]]))
"""


def start(
    after: str, *, ignored: bool = False, nohup: bool = False, stdin: int = subprocess.DEVNULL, bound: float = 60
) -> tuple[subprocess.Popen[str], int, int, Path]:
    def dispositions() -> (
        None
    ):  # whatever the tests themselves were started with: a shell's background commands ignore SIGINT
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, DRIVER.format(after=after), str(bound)],
        stdout=subprocess.PIPE,
        stdin=stdin,
        text=True,
        preexec_fn=dispositions,
    )
    assert process.stdout is not None
    driver, child, folder = process.stdout.readline().split()
    return process, int(driver), int(child), Path(folder)


@pytest.mark.parametrize(("after", "code"), [("sys.exit(3)", 3), ("raise SystemExit(0)", 0)])
def test_normal_end_passes_the_exit_code_and_ends_orphans(after: str, code: int) -> None:
    process, _, child, folder = start(after)
    assert process.wait(timeout=20) == code
    assert gone(child)
    assert not folder.exists()


STOPS = """
import signal
from swe_rl.cluster.supervise import stop_on_signals
stop_on_signals()
try:
    print("ready", flush=True)
    time.sleep({seconds})
except KeyboardInterrupt:
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Ray runs Python's handlers every second only
        print("stopping", flush=True)
        time.sleep(1.2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        print("closing", flush=True)
    except KeyboardInterrupt:
        print("disturbed", flush=True)
    sys.exit(130)"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_background_command_of_a_shell_can_be_interrupted(signum: signal.Signals) -> None:
    """`bash scripts/quickstart.sh & kill -INT $!`: the shell has told it to ignore SIGINT."""
    process, _, child, folder = start(STOPS.format(seconds=300), ignored=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signum)
    assert process.wait(timeout=20) == 130 and process.stdout.read() == "stopping\nclosing\n"
    assert gone(child) and not folder.exists()


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    """A shell whose terminal goes sends SIGHUP to all of its jobs."""
    process, driver, child, _ = start(STOPS.format(seconds=4), nohup=True, bound=1)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    os.kill(driver, signal.SIGHUP)
    assert process.wait(timeout=20) == 0 and gone(child)


@pytest.mark.parametrize("to_both", [False, True])
def test_at_a_terminal(to_both: bool) -> None:
    """Ctrl-C reaches supervisor and driver and is one interruption; `kill -INT` of the supervisor alone is one too."""
    ours, theirs = os.openpty()
    process, driver, child, _ = start(STOPS.format(seconds=300), stdin=theirs)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    if to_both:
        os.kill(driver, signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    said = "closing\n" if to_both else "stopping\nclosing\n"
    assert process.wait(timeout=20) == 130 and process.stdout.read() == said
    assert gone(child)
    os.close(ours), os.close(theirs)


def test_a_parent_that_died_before_it_was_asked_for_is_noticed() -> None:
    code = (
        "from swe_rl.cluster.processes import die_with_parent; die_with_parent(parent={}); import time; time.sleep({})"
    )
    late = subprocess.run([sys.executable, "-c", code.format(1, 60)], timeout=30, check=False)
    assert late.returncode == -signal.SIGTERM
    assert subprocess.run([sys.executable, "-c", code.format(os.getpid(), 0)], timeout=30, check=False).returncode == 0


def test_driver_killed_with_sigkill() -> None:
    process, driver, child, folder = start("time.sleep(300)")
    os.kill(driver, signal.SIGKILL)
    assert process.wait(timeout=20) == 128 + signal.SIGKILL
    assert gone(child)
    assert not folder.exists()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_supervisor_reaches_the_driver(sig: signal.Signals) -> None:
    process, driver, child, _ = start("time.sleep(300)")
    process.send_signal(sig)
    assert process.wait(timeout=20) != 0
    assert gone(driver) and gone(child)


def test_supervisor_killed_with_sigkill_stops_the_driver() -> None:
    process, driver, child, folder = start("time.sleep(300)")
    process.kill()
    process.wait(timeout=20)
    assert gone(driver) and alive(child)
    psutil.Process(child).kill()  # adopted by nobody: the next start of the run ends it from its record
    folder.rmdir()


def test_recorded_processes_are_ended_but_reused_pids_are_spared(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "300"])
    record = tmp_path / "processes.json"
    record_processes(record)
    assert str(child.pid) in record.read_text()
    spared = tmp_path / "other.json"
    spared.write_text(f'[{{"pid": {child.pid}, "created": 1.0}}]')
    assert end_recorded_processes(spared) == []
    assert child.poll() is None
    assert child.pid in end_recorded_processes(record)
    assert child.wait(timeout=5) is not None
