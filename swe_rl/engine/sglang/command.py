"""The command line of one SGLang server: which interpreter, which flags on a CPU and on GPUs."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

import swe_rl
from swe_rl.config.engine import EngineSettings
from swe_rl.errors import ConfigError

SERVE = Path(__file__).with_name("serve.py")
# The CPU path of SGLang 0.5.23. One thread and sleep-on-idle, or its processes spin against the trainer on a few cores.
CPU_FLAGS = (
    *("--device", "cpu"),
    *("--attention-backend", "torch_native"),
    "--sleep-on-idle",
    "--disable-overlap-schedule",
    "--skip-server-warmup",
    *("--mem-fraction-static", "0.1"),
)


def interpreter(config: EngineSettings) -> str:
    """The Python that has SGLang: the setting, else this one, else .venv-sglang beside the checkout.

    Raises ConfigError with the remedy where there is none.
    """
    if config.sglang_python:
        if not Path(config.sglang_python).is_file():
            raise ConfigError(f"sglang_python: {config.sglang_python} is not a file")
        return config.sglang_python
    if importlib.util.find_spec("sglang") is not None:
        return sys.executable
    beside = Path(swe_rl.__file__).parents[1] / ".venv-sglang" / "bin" / "python"
    if beside.is_file():
        return str(beside)
    raise ConfigError(
        "engine=sglang: no interpreter has sglang; run scripts/setup_sglang_cpu.sh or set --sglang-python"
    )


def sglang_command(
    config: EngineSettings,
    hf_checkpoint: str,
    *,
    port: int,
    dtype: str,
    seed: int,
    tensor_parallel: int,
    base_gpu_id: int | None,
) -> tuple[list[str], dict[str, str]]:
    """argv and added environment of one server. base_gpu_id: its first GPU, None = CPU."""
    flags = ["--model-path", hf_checkpoint, "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    flags += ["--random-seed", str(seed), "--weight-version", "0"]
    env = {"SWE_RL_END_WITH_STDIN": "1", "HF_HUB_OFFLINE": "1"}
    if base_gpu_id is None:
        flags += [*CPU_FLAGS, "--max-total-tokens", str(config.engine_cache_tokens)]
        flags += ["--max-running-requests", str(config.engine_max_batch)]
        env |= {"SWE_RL_SGLANG_CPU": "1", "OMP_NUM_THREADS": str(max(1, config.engine_threads))}
    else:
        flags += ["--tp-size", str(tensor_parallel), "--base-gpu-id", str(base_gpu_id)]
    return [interpreter(config), str(SERVE), *flags, *shlex.split(config.sglang_args)], env
