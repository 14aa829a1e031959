"""Start the engines of a run, embedded or SGLang, and end them with it."""

from __future__ import annotations

import atexit
import socket
import sys
import tempfile
from pathlib import Path

from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.engine.process import EngineProcess
from swe_rl.engine.sglang.command import sglang_command
from swe_rl.errors import ConfigError, EngineError

__all__ = ["EngineFleet", "EngineProcess", "launch_engines"]


class EngineFleet:
    """The engines of a run. `processes` is empty where the URLs were given: engines of others are used, never ended."""

    def __init__(self, urls: list[str], processes: list[EngineProcess]) -> None:
        self.urls = urls
        self.processes = processes
        atexit.register(self.stop)

    def check(self) -> None:
        """Raise EngineError with the end of its log if an engine of this fleet has died."""
        for process in self.processes:
            if not process.alive():
                raise EngineError(f"engine {process.url} died:\n{process.log_tail()}")

    def stop(self) -> None:
        """End all engines that this fleet started. Idempotent."""
        atexit.unregister(self.stop)
        for process in self.processes:
            process.stop()
        self.processes = []


def launch_engines(
    config: Config, hf_checkpoint: str, *, log_dir: Path | None = None, training: bool = True
) -> EngineFleet:
    """Start `rollout_num_gpus / rollout_num_gpus_per_engine` engines on this machine and wait until all are healthy.

    With `engine_urls` nothing is started. Logs go to `log_dir`/engine_<i>.log (default: a new temporary folder).
    training: a trainer shares the machine; without one the engines have all its GPUs.
    Raises ConfigError for sizes that do not divide, EngineError with a log's end where a start fails (all are ended then).
    """
    if config.engine_urls:
        return EngineFleet([url.rstrip("/") for url in config.engine_urls], [])
    per_engine = config.rollout_num_gpus_per_engine
    if config.rollout_num_gpus % per_engine:
        raise ConfigError(f"rollout_num_gpus {config.rollout_num_gpus} is no multiple of {per_engine} per engine")
    folder = log_dir or Path(tempfile.mkdtemp(prefix="swe-rl-engines-"))
    limit = Deadline(config.engine_start_timeout)
    processes: list[EngineProcess] = []
    try:
        for index in range(config.rollout_num_gpus // per_engine):
            process = _engine(config, hf_checkpoint, index, folder / f"engine_{index}.log", training=training)
            processes.append(process)
            process.start()
        urls = [process.wait_healthy(limit.remaining()) for process in processes]
    except BaseException:
        for process in processes:
            process.stop()
        raise
    return EngineFleet(urls, processes)


def _engine(config: Config, hf_checkpoint: str, index: int, log_path: Path, *, training: bool) -> EngineProcess:
    if config.engine == "embedded":
        return EngineProcess(embedded_command(config, hf_checkpoint, seed=config.seed + index), log_path=log_path)
    base_gpu_id = None
    if config.num_gpus_per_node:  # on one node the training processes have the first GPUs
        first = config.actor_num_gpus_per_node if training and config.num_nodes == 1 else 0
        base_gpu_id = first + index * config.rollout_num_gpus_per_engine
    port = _free_port()
    command, env = sglang_command(
        config,
        hf_checkpoint,
        port=port,
        dtype=config.dtype,
        seed=config.seed + index,
        tensor_parallel=config.rollout_num_gpus_per_engine,
        base_gpu_id=base_gpu_id,
    )
    return EngineProcess(command, log_path=log_path, env=env, url=f"http://127.0.0.1:{port}")


def embedded_command(config: Config, hf_checkpoint: str, *, seed: int) -> list[str]:
    """argv of one embedded engine on a free port."""
    flags = {
        "--model-path": hf_checkpoint,
        "--port": 0,
        "--dtype": config.dtype,
        "--threads": max(1, config.engine_threads),
        "--max-running-requests": config.engine_max_batch,
        "--max-total-tokens": config.engine_cache_tokens,
        "--random-seed": seed,
    }
    return [
        *(sys.executable, "-m", "swe_rl", "engine", "--end-with-stdin"),
        *(text for flag, value in flags.items() for text in (flag, str(value))),
    ]


def _free_port() -> int:
    """A port that was free a moment ago: SGLang cannot report the one it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
