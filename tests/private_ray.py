"""A Ray cluster for the tests of a module."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from swe_rl.cluster.local_ray import ray_cluster
from swe_rl.config import Config


@contextlib.contextmanager
def private_ray() -> Iterator[None]:
    """Its folder has a short name, as socket paths are limited to 107 bytes; Ray may still write to it at the end."""
    folder = tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp", ignore_cleanup_errors=True)
    with folder, ray_cluster(Config(), Path(folder.name)):
        yield
