"""The Ray cluster of a run: a private local one that ends with the run, or a running one named by `ray_address`."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray

from swe_rl.cluster.processes import end_processes
from swe_rl.config import Config
from swe_rl.errors import InfraError

log = logging.getLogger(__name__)
START_TRIES = 3


@contextmanager
def ray_cluster(config: Config, temp_dir: Path) -> Iterator[None]:
    """Connect to `config.ray_address`, or start a private cluster whose sockets and logs lie in `temp_dir`.

    Raises InfraError if Ray does not start. On exit the driver disconnects; a private cluster ends with it.
    """
    # Sandboxes use memory on purpose; Ray's own monitor would kill the trainer instead of the sandbox.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    # A dying worker would SIGKILL its children; a run's pool server ends with it by itself, after it has closed its containers.
    os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if config.ray_address:
        where: dict[str, Any] = {"address": config.ray_address}
    else:
        where = {
            "num_gpus": config.num_gpus_per_node or None,
            "object_store_memory": config.ray_object_store_mb * 1_000_000,
            "include_dashboard": False,
            "_temp_dir": str(temp_dir),
        }
    _start(where, tries=1 if config.ray_address else START_TRIES)
    try:
        yield
    finally:
        ray.shutdown()


def _start(where: dict[str, Any], *, tries: int) -> None:
    """A node that is slow to start (a busy machine) aborts itself after a fixed time and raises a bare Exception: try again."""
    for left in reversed(range(tries)):
        on_term = signal.getsignal(signal.SIGTERM)
        before = set(psutil.Process().children(recursive=True))
        try:
            ray.init(**where, namespace="swe-rl", log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            ray.shutdown()
            end_processes(
                [p for p in psutil.Process().children(recursive=True) if p not in before]
            )  # a half-started cluster
            if not left:
                address = where.get("address", "a private local cluster")
                raise InfraError(
                    f"Ray did not start ({address}; --ray-address): {str(error).splitlines()[0]}"
                ) from error
            log.warning("Ray did not start, trying again: %s", str(error).splitlines()[0])
        else:
            signal.signal(
                signal.SIGTERM, on_term
            )  # Ray puts its own there, which prints a stack and skips our cleaning up
            return
