"""The Ray cluster of a run: a private local one that ends with the run, or a running one named by `ray_address`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from swe_rl.config import Config
from swe_rl.errors import InfraError


@contextmanager
def ray_cluster(config: Config, temp_dir: Path) -> Iterator[None]:
    """Connect to `config.ray_address`, or start a private cluster whose sockets and logs lie in `temp_dir`.

    Raises InfraError if Ray does not start. On exit the driver disconnects; a private cluster ends with it.
    """
    # Several sandboxes use memory on purpose; Ray's own monitor would kill the trainer instead of the sandbox.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common = {"namespace": "swe-rl", "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if config.ray_address:
            ray.init(address=config.ray_address, **common)  # type: ignore[arg-type]
        else:
            ray.init(
                num_gpus=config.num_gpus_per_node or None,
                object_store_memory=config.ray_object_store_mb * 1_000_000,
                include_dashboard=False,
                _temp_dir=str(temp_dir),
                **common,  # type: ignore[arg-type]
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise InfraError(f"Ray did not start (--ray-address '{config.ray_address or 'local'}'): {error}") from error
    try:
        yield
    finally:
        ray.shutdown()
