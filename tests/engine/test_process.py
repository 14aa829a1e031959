"""Engine processes: a start that fails says why, an end leaves nothing, and a dead starter takes its engine along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swe_rl.config import Config
from swe_rl.engine.launch import launch_engines
from swe_rl.engine.process import EngineProcess
from swe_rl.engine.sglang.command import sglang_command
from swe_rl.errors import ConfigError, EngineError, UsageError
from tests.processes import gone

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_stop_ends_a_group_that_ignores_sigterm(tmp_path: Path) -> None:
    process = EngineProcess([sys.executable, "-c", STUBBORN], log_path=tmp_path / "log", url="http://127.0.0.1:9")
    process.start()
    while not (tmp_path / "log").read_text().strip():
        time.sleep(0.05)
    leader, child = process.pid, int((tmp_path / "log").read_text())
    process.stop(timeout=0.3)
    assert gone(leader) and gone(child)
    process.stop()


def test_a_child_that_outlives_its_leader_is_ended(tmp_path: Path) -> None:
    code = STUBBORN.replace("time.sleep(600)\n", "sys.exit(0)\n")
    process = EngineProcess([sys.executable, "-c", code], log_path=tmp_path / "log", url="http://127.0.0.1:9")
    process.start()
    with pytest.raises(EngineError, match="exited with code 0"):
        process.wait_healthy(30)
    assert gone(int((tmp_path / "log").read_text()))


def test_a_start_that_hangs_is_bounded_and_shows_the_log(tmp_path: Path) -> None:
    code = "import time; print('loading shard 3', flush=True); time.sleep(600)"
    process = EngineProcess([sys.executable, "-c", code], log_path=tmp_path / "log", url="http://127.0.0.1:9")
    process.start()
    pid = process.pid
    with pytest.raises(EngineError, match=r"(?s)not healthy after.*loading shard 3"):
        process.wait_healthy(3)
    assert gone(pid)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no-such-python"):
        EngineProcess(["/no-such-python"], log_path=tmp_path / "log").start()


def test_a_broken_checkpoint_is_said_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"(?s)exited with code 1.*config\.json"):
        launch_engines(Config(), str(tmp_path / "nothing"), log_dir=tmp_path)


def test_the_engine_ends_when_its_starter_is_killed(checkpoint: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from swe_rl.config import Config;"
        "from swe_rl.engine.launch import launch_engines;"
        f"fleet = launch_engines(Config(), {str(checkpoint)!r}, log_dir=Path({str(tmp_path)!r}));"
        "fleet.check(); print(fleet.processes[0].pid, flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    engine = int(starter.stdout.readline())
    assert psutil.pid_exists(engine)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    assert gone(engine)


def test_given_urls_are_used_and_never_ended() -> None:
    fleet = launch_engines(Config(engine_urls=["http://a:1/", "http://b:2"]), "unused")
    assert (fleet.urls, fleet.processes) == (["http://a:1", "http://b:2"], [])
    fleet.stop()


def test_sizes_and_interpreters_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="multiple"):
        launch_engines(Config(rollout_num_gpus=3, rollout_num_gpus_per_engine=2), "unused")
    with pytest.raises(ConfigError, match="sglang_python"):
        launch_engines(Config(engine="sglang", sglang_python=str(tmp_path / "python")), "unused")


@pytest.mark.parametrize(("training", "first"), [(True, 1), (False, 0)])
def test_engines_without_a_trainer_begin_at_the_first_gpu(tmp_path: Path, training: bool, first: int) -> None:
    config = Config(engine="sglang", num_gpus_per_node=2, sglang_python="/bin/echo")
    with pytest.raises(EngineError, match=rf"--base-gpu-id {first}\b"):  # the log's end: what echo was told
        launch_engines(config, "m", log_dir=tmp_path, training=training)


def test_sglang_flags_on_cpu_and_gpu() -> None:
    config = Config(sglang_python=sys.executable, sglang_args="--log-level 'very loud'")
    common = {"port": 5, "dtype": "float32", "seed": 1, "tensor_parallel": 4}
    cpu, cpu_env = sglang_command(config, "m", **common, base_gpu_id=None)
    gpu, gpu_env = sglang_command(config, "m", **common, base_gpu_id=4)
    assert "torch_native" in cpu and cpu_env["SWE_RL_SGLANG_CPU"] == cpu_env["OMP_NUM_THREADS"] == "1"
    assert gpu[gpu.index("--base-gpu-id") + 1] == gpu[gpu.index("--tp-size") + 1] == "4"
    assert "--device" not in gpu and "SWE_RL_SGLANG_CPU" not in gpu_env and cpu[-1] == "very loud"


@pytest.mark.parametrize("flags", [["--port", "70000"], ["--threads", "0"], ["--max-total-tokens", "1"]])
def test_impossible_flags_are_usage_errors(flags: list[str]) -> None:
    from swe_rl.engine.embedded.server import main

    with pytest.raises(UsageError, match=flags[0]):
        main(["--model-path", "x", *flags])
